#include "services/engine_proxy/door/fetch.h"

#include <utility>

#include "services/engine_proxy/door/framing.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

constexpr size_t kAbortReplyBytes = 64 * 1024;

}  // namespace

Task<BufferedReply> Fetch(UpstreamCall& call, std::string head, std::string body, size_t limit) {
  BufferedReply reply;
  reply.result = co_await call.Start(std::move(head), body, false);
  if (reply.result != CallResult::kOk) co_return reply;
  reply.status = call.status();
  reply.content_type = std::string(call.Field("content-type"));
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.broken) {
      reply.result = call.timed_out() ? CallResult::kTimedOut : CallResult::kBroken;
      co_return reply;
    }
    if (reply.body.size() + piece.data.size() > limit) reply.result = CallResult::kBroken;
    if (reply.result == CallResult::kOk) reply.body.append(piece.data);
    if (piece.end) break;
  }
  call.Finish();
  co_return reply;
}

Task<void> SendAborts(Shard& shard, std::vector<std::string> ids, std::string authorization) {
  for (const std::string& id : ids) {
    std::string body = "{\"rid\":" + QuoteJson(id) + "}";
    std::string head = "POST /abort_request HTTP/1.1\r\n";
    AppendField("Host", shard.shared.engine_authority, &head);
    AppendField("Content-Type", "application/json", &head);
    AppendField("Content-Length", std::to_string(body.size()), &head);
    if (!authorization.empty()) AppendField("Authorization", authorization, &head);
    head += "\r\n";
    UpstreamCall call(shard.pool, shard.shared.options.limits);
    const BufferedReply ignored =
        co_await Fetch(call, std::move(head), std::move(body), kAbortReplyBytes);
    (void)ignored;
  }
}

}  // namespace lorry::door
