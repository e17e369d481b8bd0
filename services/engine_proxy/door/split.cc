#include "services/engine_proxy/door/split.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/merge.h"

namespace lorry::door {

SplitCall::SplitCall(Exchange& x, size_t n)
    : x_(x), replies_(n), left_(n), done_(x.shard.io.get_executor()) {
  done_.expires_at(SteadyTime::time_point::max());
}

Task<bool> SplitCall::Run(std::string body) {
  const std::string first_id = x_.record.request_id;
  const size_t id_at = body.find(first_id);
  for (size_t i = 0; i < replies_.size(); ++i) {
    std::string own = body;
    if (i > 0 && id_at != std::string::npos) own.replace(id_at, first_id.size(), x_.shard.NewId());
    std::string head = EngineHead(x_, own.size());
    asio::co_spawn(x_.shard.io, FetchOne(i, std::move(head), std::move(own)), asio::detached);
  }
  while (left_ > 0) {
    auto [ignored] = co_await done_.async_wait(kAwait);
    (void)ignored;
    const bool silent = std::any_of(replies_.begin(), replies_.end(), [](const auto& reply) {
      return reply.result == CallResult::kSilent;
    });
    if (!silent || x_.client.left()) continue;
    x_.head.keep_alive = false;
    co_await RefuseCall(x_, CallResult::kSilent);
    x_.client.Leave();
  }
  x_.OnFirstByte();
  if (x_.client.left()) co_return false;
  co_return co_await AnswerMerged();
}

Task<void> SplitCall::FetchOne(size_t index, std::string head, std::string body) {
  UpstreamCall call(x_.shard.pool, x_.shard.shared.options.limits);
  BufferedReply reply =
      co_await Fetch(call, head, body, x_.shard.shared.options.limits.split_reply_bytes);
  const bool silent = reply.result == CallResult::kSilent;
  replies_[index] = std::move(reply);
  if (silent) {
    done_.cancel();  // the client need not wait for it, but it counts until its end
    co_await ReadToEnd(call);
  }
  if (--left_ == 0) done_.cancel();
}

Task<bool> SplitCall::AnswerMerged() {
  std::vector<std::string> bodies;
  for (BufferedReply& reply : replies_) {
    if (reply.result != CallResult::kOk) co_return co_await RefuseCall(x_, reply.result);
    if (reply.status != 200) {
      co_return co_await Answer(x_, reply.status, reply.content_type, std::move(reply.body));
    }
    bodies.push_back(std::move(reply.body));
  }
  absl::StatusOr<std::string> merged = x_.route.shape == BodyShape::kGenerate
                                           ? MergeGenerate(bodies)
                                           : MergeOpenAi(std::move(bodies));
  if (!merged.ok()) {
    Refused why{502, "ENGINE_REPLY_INVALID", "one of n replies was not an OpenAI completion"};
    co_return co_await Refuse(x_, std::move(why));
  }
  std::string text = *std::move(merged);
  if (x_.restorer) text = x_.restorer->Feed(text, true);
  co_return co_await Answer(x_, 200, "application/json", std::move(text));
}

}  // namespace lorry::door
