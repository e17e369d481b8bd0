// Session: calls whose whole reply is collected: one of n, aborts, control routes.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <memory>
#include <utility>

#include "services/engine_proxy/door/session.h"

namespace lorry::door {
namespace {

constexpr size_t kAbortReplyBytes = 64 * 1024;

// What n children write and their parent reads; all on one thread.
struct Gather {
  explicit Gather(size_t n) : replies(n), left(n) {}
  std::vector<BufferedReply> replies;
  size_t left;
  Timer* done = nullptr;
};

}  // namespace

Task<BufferedReply> Session::Fetch(std::string head, std::string body, UpstreamCall* call,
                                   size_t limit) {
  BufferedReply reply;
  reply.result = co_await call->Start(std::move(head), body, false);
  if (reply.result != CallResult::kOk) co_return reply;
  reply.status = call->status();
  reply.content_type = std::string(call->Field("content-type"));
  for (;;) {
    const UpstreamCall::Piece piece = co_await call->Read();
    if (piece.broken) {
      reply.result = call->timed_out() ? CallResult::kTimedOut : CallResult::kBroken;
      co_return reply;
    }
    // Beyond the limit the rest is read all the same: the engine counts until its end.
    if (reply.body.size() + piece.data.size() > limit) reply.result = CallResult::kBroken;
    if (reply.result == CallResult::kOk) reply.body.append(piece.data);
    if (piece.end) break;
  }
  call->Finish();
  co_return reply;
}

// n > 1 as n requests of n = 1, at once. SGLang computes the prompt that they have in common once
// where it schedules by `lpm`, and for each of them where it schedules by `fcfs`, its default: a
// warm-up before them would cost every short prompt a round through the engine's queue.
Task<bool> Session::ServeSplit(Exchange& x, std::string body, uint64_t n) {
  auto gather = std::make_shared<Gather>(n);
  Timer done(shard_.io.get_executor());
  done.expires_at(SteadyTime::time_point::max());
  gather->done = &done;
  const std::string first_id = x.record.request_id;
  const size_t id_at = body.find(first_id);
  for (size_t i = 0; i < n; ++i) {
    std::string own = body;
    if (i > 0 && id_at != std::string::npos) own.replace(id_at, first_id.size(), shard_.NewId());
    std::string head = EngineHead(x, own.size());
    asio::co_spawn(
        shard_.io,
        [](std::shared_ptr<Session> self, std::shared_ptr<Gather> all, size_t index,
           std::string request_head, std::string request) -> Task<void> {
          UpstreamCall call(self->shard_.pool, self->limits_);
          BufferedReply reply = co_await self->Fetch(std::move(request_head), std::move(request),
                                                     &call, self->limits_.split_reply_bytes);
          all->replies[index] = std::move(reply);
          if (--all->left == 0) all->done->cancel();
        }(shared_from_this(), gather, i, std::move(head), std::move(own)),
        asio::detached);
  }
  while (gather->left > 0) {
    auto [ignored] = co_await done.async_wait(kAwait);
    (void)ignored;
  }
  OnFirstByte(x, false);
  if (client_left_) co_return false;
  std::vector<std::string> bodies;
  for (BufferedReply& reply : gather->replies) {
    if (reply.result != CallResult::kOk) co_return co_await RefuseCall(x, reply.result);
    if (reply.status != 200) {
      const bool keep = KeepAlive(x);
      const std::string type = reply.content_type;
      co_return co_await Answer(x, reply.status, type, std::move(reply.body), "", keep);
    }
    bodies.push_back(std::move(reply.body));
  }
  absl::StatusOr<std::string> merged = x.route.shape == BodyShape::kGenerate
                                           ? MergeGenerate(bodies)
                                           : MergeOpenAi(std::move(bodies));
  if (!merged.ok()) {
    {
      Refused why{502, "ENGINE_REPLY_INVALID", "one of n replies was not an OpenAI completion"};
      co_return co_await Refuse(x, std::move(why));
    }
  }
  std::string text = *std::move(merged);
  if (x.restorer) text = x.restorer->Feed(text, true);
  const bool keep = KeepAlive(x);
  co_return co_await Answer(x, 200, "application/json", std::move(text), "", keep);
}

Task<void> Session::SendAbort(std::vector<std::string> ids, std::string authorization) {
  const std::shared_ptr<Session> self = shared_from_this();
  for (const std::string& id : ids) {
    std::string body = "{\"rid\":" + QuoteJson(id) + "}";
    std::string head = "POST /abort_request HTTP/1.1\r\n";
    AppendField("Host", shard_.shared.engine_authority, &head);
    AppendField("Content-Type", "application/json", &head);
    AppendField("Content-Length", std::to_string(body.size()), &head);
    if (!authorization.empty()) AppendField("Authorization", authorization, &head);
    head += "\r\n";
    UpstreamCall call(shard_.pool, limits_);
    const BufferedReply ignored =
        co_await Fetch(std::move(head), std::move(body), &call, kAbortReplyBytes);
    (void)ignored;
  }
}

// SGLang answers 200 whether or not it knew the id; so does the door. A request that streams is
// aborted as soon as its first token was seen; one that does not stream runs to its end, as its
// first token cannot be seen.
Task<bool> Session::ServeAbort(Exchange& x) {
  const PaddedBody body(std::move(x.body));
  auto fields = ObjectFields(body);
  if (!fields.ok()) {
    Refused why{400, "REQUEST_INVALID", "a JSON object is expected"};
    co_return co_await Refuse(x, std::move(why));
  }
  const JsonField* all = FindField(*fields, "abort_all");
  if (all != nullptr && body.Text(all->value) == "true") {
    {
      Refused why{403, "ROUTE_REFUSED",
                  "abort_all would end other clients' requests; abort by rid"};
      co_return co_await Refuse(x, std::move(why));
    }
  }
  const JsonField* rid = FindField(*fields, "rid");
  auto id = rid != nullptr && rid->value.kind == JsonKind::kString
                ? StringValue(body, rid->value)
                : absl::StatusOr<std::string>(std::string());
  if (!id.ok()) {
    Refused why{400, "REQUEST_INVALID", "rid is not a string"};
    co_return co_await Refuse(x, std::move(why));
  }
  for (const std::shared_ptr<LiveRequest>& live : shard_.shared.live_ids.Find(id->substr(0, 128))) {
    live->abort_wanted = true;
    if (live->answered) co_await SendAbort(live->engine_ids, x.facts->control_authorization);
  }
  const bool keep = KeepAlive(x);
  co_return co_await Answer(x, 200, "application/json", "", "", keep);
}

}  // namespace lorry::door
