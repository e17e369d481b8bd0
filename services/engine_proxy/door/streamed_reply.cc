#include "services/engine_proxy/door/streamed_reply.h"

#include <array>
#include <span>
#include <utility>

#include "services/engine_proxy/door/heads.h"

namespace lorry::door {

void StreamedReply::Begin(const UpstreamCall& call) {
  if (told()) return;
  begun_ = true;
  head_.clear();
  keep_ = x_.KeepAlive();
  chunked_ = AppendReplyHead(x_, call, keep_, std::nullopt, &head_);
}

Task<bool> StreamedReply::Write(std::string text, bool last) {
  x_.record.status = 200;
  std::string framing = std::exchange(head_, {});
  std::string_view end;
  if (chunked_) {
    end = AppendChunk(text.size(), last, &framing);
  } else {
    x_.client.BeginUnframed();
  }
  std::array<asio::const_buffer, 3> out = {asio::buffer(framing), asio::buffer(text),
                                           asio::buffer(end)};
  std::span<asio::const_buffer> left = out;
  bool written = x_.client.WriteNow(&left);
  if (written && !left.empty()) written = co_await x_.client.WriteRest(left);
  co_return written && (!last || (keep_ && chunked_));
}

}  // namespace lorry::door
