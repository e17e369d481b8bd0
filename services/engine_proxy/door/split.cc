#include "services/engine_proxy/door/split.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/sample_request.h"

namespace lorry::door {

SplitCall::SplitCall(Exchange& x, const BodyFacts& facts)
    : x_(x),
      facts_(facts),
      of_{.n = facts.n, .batch = facts.batch},
      held_(x.shard.shared),
      replies_(facts.n),
      unsent_(facts.n),
      left_(facts.n),
      changed_(x.shard.io.get_executor()) {
  changed_.expires_at(SteadyTime::time_point::max());
}

Task<bool> SplitCall::Run() {
  const LeaveHook hook(x_.client, [this] { SpawnAbortOfAll(x_); });
  for (size_t i = 0; i < replies_.size(); ++i) {
    asio::co_spawn(x_.shard.io, FetchOne(i), asio::detached);
  }
  while (left_ > 0) {
    auto [ignored] = co_await changed_.async_wait(kAwait);
    (void)ignored;
    const bool silent = std::any_of(replies_.begin(), replies_.end(), [](const auto& reply) {
      return reply.result == CallResult::kSilent;
    });
    if (!silent || x_.client.left()) continue;
    x_.head.keep_alive = false;
    co_await RefuseCall(x_, CallResult::kSilent);
    x_.client.Leave();
  }
  x_.OnBytes(std::any_of(replies_.begin(), replies_.end(),
                         [](const auto& reply) { return reply.status == 200; }));
  if (x_.client.left()) co_return false;
  co_return co_await AnswerMerged();
}

Task<void> SplitCall::FetchOne(size_t sample) {
  const DoorLimits& limits = x_.shard.shared.options.limits;
  UpstreamCall call(x_.shard.pool, limits);
  BufferedReply reply;
  {
    const SampleRequest request(x_, facts_, sample);
    reply = co_await Fetch(call, request.pieces(), limits.split_reply_bytes, &held_);
  }
  if (--unsent_ == 0) x_.ForgetBody();
  const bool silent = reply.result == CallResult::kSilent;
  replies_[sample] = std::move(reply);
  if (silent) {
    changed_.cancel();  // the client need not wait for it, but it counts until its end
    co_await ReadToEnd(call);
  }
  x_.admission.EndConnection();
  if (--left_ == 0) changed_.cancel();
}

Task<bool> SplitCall::AnswerMerged() {
  std::vector<std::string> bodies;
  for (BufferedReply& reply : replies_) {
    if (reply.dropped) co_return co_await Refuse(x_, *std::move(reply.dropped));
    if (reply.result != CallResult::kOk) {
      co_return co_await RefuseCall(x_, reply.result, std::move(reply.body));
    }
    if (reply.status != 200) {
      co_return co_await PassOn(x_, reply.status, reply.content_type, std::move(reply.body));
    }
    bodies.push_back(std::move(reply.body));
  }
  absl::StatusOr<std::string> merged = x_.route.shape == BodyShape::kGenerate
                                           ? MergeGenerate(std::move(bodies), of_)
                                           : MergeOpenAi(std::move(bodies), of_);
  if (!merged.ok()) {
    Refused why{502, "ENGINE_REPLY_INVALID", std::string(ToStd(merged.status().message()))};
    co_return co_await Refuse(x_, std::move(why));
  }
  std::string text;
  if (x_.restorer) {
    x_.restorer->Feed(*merged, true, &text);
  } else {
    text = *std::move(merged);
  }
  co_return co_await Answer(x_, 200, "application/json", std::move(text));
}

}  // namespace lorry::door
