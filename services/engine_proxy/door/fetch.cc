#include "services/engine_proxy/door/fetch.h"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <numeric>
#include <utility>

#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/exchange.h"
#include "services/engine_proxy/door/framing.h"
#include "services/engine_proxy/door/json_splice.h"

namespace lorry::door {
namespace {

constexpr size_t kAbortReplyBytes = 64 * 1024;

// Whatever is answered: an abort is tried.
Task<void> PostControl(Shard& shard, std::string_view path, const std::string& body,
                       const std::string& authorization) {
  std::string head = "POST " + std::string(path) + " HTTP/1.1\r\n";
  AppendField("Host", shard.shared.engine_authority, &head);
  AppendField("Content-Type", "application/json", &head);
  AppendField("Content-Length", std::to_string(body.size()), &head);
  if (!authorization.empty()) AppendField("Authorization", authorization, &head);
  head += "\r\n";
  UpstreamCall call(shard.pool, shard.shared.options.limits);
  const std::array<asio::const_buffer, 2> request = {asio::buffer(head), asio::buffer(body)};
  const BufferedReply ignored = co_await Fetch(call, request, kAbortReplyBytes);
  (void)ignored;
}

Task<void> AbortAgain(Shard& shard, std::weak_ptr<LiveRequest> live, std::vector<std::string> ids,
                      std::string authorization) {
  Timer timer(shard.io.get_executor());
  for (;;) {
    timer.expires_after(kAbortAgain);
    auto [ignored] = co_await timer.async_wait(kAwait);
    (void)ignored;
    if (live.expired()) co_return;
    co_await SendAborts(shard, ids, authorization);
  }
}

}  // namespace

Task<BufferedReply> Fetch(UpstreamCall& call, std::span<const asio::const_buffer> request,
                          size_t limit, BodyLease* held) {
  const CallResult started = co_await call.Start(request, false);
  if (started != CallResult::kOk) {
    BufferedReply none{.result = started, .body = call.Problem(started)};
    co_return none;
  }
  co_return co_await Collect(call, limit, held);
}

Task<BufferedReply> Collect(UpstreamCall& call, size_t limit, BodyLease* held) {
  BufferedReply reply;
  reply.status = call.reply().status();
  reply.content_type = std::string(call.reply().Get("content-type"));
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.result != CallResult::kOk) {
      reply.result = piece.result;
      reply.body = call.Problem(piece.result);
      co_return reply;
    }
    for (const asio::const_buffer& data : piece.data) {
      if (reply.dropped) break;
      if (reply.body.size() + data.size() > limit) {
        reply.dropped = ReplyTooLarge(limit);
      } else if (held != nullptr && !held->Grow(data.size())) {
        reply.dropped = NoRoomForReply();
      }
      if (reply.dropped) break;
      reply.body.append(static_cast<const char*>(data.data()), data.size());
    }
    if (piece.end) break;
  }
  call.Finish();
  co_return reply;
}

Task<void> ReadToEnd(UpstreamCall& call) {
  const CallResult head = co_await call.WaitForHead();
  if (head != CallResult::kOk) co_return;
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.end || piece.result != CallResult::kOk) co_return;
  }
}

Task<void> SendAborts(Shard& shard, std::vector<std::string> ids, std::string authorization) {
  for (const std::string& id : ids) {
    const std::string body = "{\"rid\":" + QuoteJson(id) + "}";
    co_await PostControl(shard, "/abort_request", body, authorization);
  }
}

Task<void> SendVllmAborts(Shard& shard, std::vector<std::string> ids, std::string authorization) {
  std::string body = "{\"request_ids\":[";
  for (size_t i = 0; i < ids.size(); ++i) body += (i == 0 ? "" : ",") + QuoteJson(ids[i]);
  body += "]}";
  co_await PostControl(shard, "/abort_requests", body, authorization);
}

void SpawnAborts(Shard& shard, std::vector<std::string> ids, const EngineFacts& facts) {
  if (ids.empty()) return;
  asio::co_spawn(shard.io, SendAborts(shard, std::move(ids), facts.control_authorization),
                 asio::detached);
}

Task<void> AbortUnwanted(Shard& shard, std::shared_ptr<LiveRequest> live,
                         std::vector<std::string> due, std::shared_ptr<const EngineFacts> facts) {
  if (facts->aborts_waiting) {
    std::vector<uint32_t> all(live->ids().size());
    std::iota(all.begin(), all.end(), 0);
    for (std::string& id : live->Answered(all)) due.push_back(std::move(id));
  }
  co_await SendAborts(shard, due, facts->control_authorization);
  if (!facts->aborts_waiting || due.empty()) co_return;
  asio::co_spawn(shard.io, AbortAgain(shard, live, std::move(due), facts->control_authorization),
                 asio::detached);
}

void SpawnAbortOfAll(Exchange& x) {
  asio::co_spawn(x.shard.io, AbortUnwanted(x.shard, x.live, x.live->WantAbort(), x.facts),
                 asio::detached);
}

}  // namespace lorry::door
