#include "services/engine_proxy/door/relay.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdio>
#include <utility>

#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/fetch.h"
#include "services/engine_proxy/door/heads.h"

namespace lorry::door {
namespace {

// A reply with a known length that fits here leaves in one write with its head.
constexpr uint64_t kOneWriteBytes = 16 * 1024;

std::string ChunkHead(size_t size) {
  char text[24];
  std::snprintf(text, sizeof(text), "%zx\r\n", size);
  return text;
}

}  // namespace

Relay::Relay(Exchange& x) : x_(x), call_(x.shard.pool, x.shard.shared.options.limits) {}

Task<bool> Relay::Run(std::string body) {
  const LeaveHook hook(x_.client, [this] { OnClientLeft(); });
  std::string request_head = EngineHead(x_, body.size());
  const CallResult started =
      co_await call_.Start(std::move(request_head), body, x_.head.method == "HEAD");
  std::string().swap(body);
  x_.lease.Resize(0);
  if (started != CallResult::kOk) co_return co_await RefuseCall(x_, started);
  const bool keep = x_.KeepAlive();
  streaming_ = IsEventStream(call_.Field("content-type"));
  ReplyHead head = MakeReplyHead(x_, call_, keep);
  const bool framed = head.chunked || !call_.has_body() || call_.content_length().has_value();
  x_.record.status = call_.status();
  const bool whole = co_await RelayBody(std::move(head.text), head.chunked);
  call_.Finish();
  co_return whole&& keep&& framed;
}

Task<bool> Relay::RelayBody(std::string head, bool chunked) {
  const bool with_head = call_.HasBuffered() || !call_.has_body() ||
                         call_.content_length().value_or(kOneWriteBytes + 1) <= kOneWriteBytes;
  if (!with_head) {
    co_await x_.client.Write(head);
    head.clear();
  }
  for (;;) {
    const UpstreamCall::Piece piece = co_await call_.Read();
    if (piece.broken) {
      if (x_.record.reason.empty() && !x_.client.left()) x_.record.reason = "ENGINE_BROKE_OFF";
      if (call_.timed_out() && x_.live && x_.live->answered) AbortOnce();
      co_return false;  // the connection closes in the middle of the framing: the client sees that
                        // it is cut
    }
    OnPiece(piece);
    std::string restored;
    std::string_view data = piece.data;
    if (x_.restorer) {
      restored = x_.restorer->Feed(piece.data, piece.end);
      data = restored;
    }
    std::string_view tail;
    if (chunked) {
      if (!data.empty()) head += ChunkHead(data.size());
      tail = data.empty() ? (piece.end ? "0\r\n\r\n" : "") : (piece.end ? "\r\n0\r\n\r\n" : "\r\n");
    }
    if (!head.empty() || !data.empty() || !tail.empty()) {
      const bool written = co_await x_.client.Write(head, data, tail);
      if (!written && !x_.live) co_return false;
    }
    head.clear();
    if (piece.end) co_return !x_.client.left();
  }
}

void Relay::OnPiece(const UpstreamCall::Piece& piece) {
  if (piece.data.empty() && !piece.end) return;
  x_.OnFirstByte();
  if (!x_.live || !streaming_ || piece.data.empty()) return;
  if (x_.live->answered.exchange(true)) return;
  if (x_.live->abort_wanted) AbortOnce();
}

void Relay::OnClientLeft() {
  if (!x_.live) return call_.Cancel();
  x_.live->abort_wanted = true;
  if (x_.live->answered) AbortOnce();
}

void Relay::AbortOnce() {
  if (std::exchange(abort_sent_, true)) return;
  asio::co_spawn(x_.shard.io,
                 SendAborts(x_.shard, x_.live->engine_ids, x_.facts->control_authorization),
                 asio::detached);
}

}  // namespace lorry::door
