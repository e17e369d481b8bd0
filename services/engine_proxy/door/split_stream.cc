#include "services/engine_proxy/door/split_stream.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "lib/base/strings.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/sample_request.h"

namespace lorry::door {
namespace {

// Of all children together; a child's next piece comes on top.
constexpr size_t kPendingBytes = 64 * 1024;

}  // namespace

SplitStream::SplitStream(Exchange& x, const BodyFacts& facts)
    : x_(x),
      facts_(facts),
      merger_(x.route.shape, {.n = facts.n, .batch = facts.batch}),
      held_(x.shard.shared),
      reply_(x),
      unsent_(facts.n),
      left_(facts.n),
      changed_(x.shard.io.get_executor()),
      room_(x.shard.io.get_executor()) {
  changed_.expires_at(SteadyTime::time_point::max());
  room_.expires_at(SteadyTime::time_point::max());
  for (uint32_t sample = 0; sample < facts.n; ++sample) watches_.emplace_back(x.live, sample);
}

Task<bool> SplitStream::Run() {
  const LeaveHook hook(x_.client, [this] { Stop(); });
  for (size_t i = 0; i < facts_.n; ++i) {
    asio::co_spawn(x_.shard.io, ReadOne(i), asio::detached);
  }
  const bool keep = co_await WriteReply();
  while (left_ > 0) {
    auto [ignored] = co_await changed_.async_wait(kAwait);
    (void)ignored;
  }
  co_return keep && !x_.client.left();
}

Task<void> SplitStream::ReadOne(size_t sample) {
  UpstreamCall call(x_.shard.pool, x_.shard.shared.options.limits);
  CallResult result = CallResult::kOk;
  {
    const SampleRequest request(x_, facts_, sample);
    result = co_await call.Start(request.pieces(), false);
  }
  if (--unsent_ == 0) x_.ForgetBody();
  if (result == CallResult::kSilent) {
    Fail(WhyNoReply(result));
    result = co_await call.WaitForHead();
  }
  if (result == CallResult::kOk) result = co_await ReadReply(call, sample);
  if (result != CallResult::kOk) Fail(WhyNoReply(result, call.Problem(result)));
  x_.admission.EndConnection();
  --left_;
  changed_.cancel();
}

Task<CallResult> SplitStream::ReadReply(UpstreamCall& call, size_t sample) {
  const bool events = HasBegunStream(call.reply());
  if (events && !reply_.begun()) reply_.Begin(call);
  std::string refusal;
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.result == CallResult::kSilent) {
      Fail(WhyNoReply(piece.result));
      call.WaitForEver();
      continue;
    }
    if (piece.result != CallResult::kOk) co_return piece.result;
    for (const asio::const_buffer& data : piece.data) {
      const std::string_view text(static_cast<const char*>(data.data()), data.size());
      if (events) {
        OnEvents(text, sample);
      } else if (refusal.size() < kPendingBytes) {
        refusal += text;
      }
    }
    if (piece.end) break;
    while (pending_.size() > kPendingBytes && !over()) {
      auto [ignored] = co_await room_.async_wait(kAwait);
      (void)ignored;
    }
  }
  if (!events) OnRefusal(call.reply(), std::move(refusal));
  call.Finish();
  co_return CallResult::kOk;
}

void SplitStream::OnEvents(std::string_view text, size_t sample) {
  x_.OnBytes(/*engine_spoke=*/true);
  SpawnAborts(x_.shard, watches_[sample].Heard(text), *x_.facts);
  if (over()) return;
  const absl::Status fed = merger_.Feed(sample, text, &pending_);
  if (!fed.ok()) {
    return Fail({502, "ENGINE_REPLY_INVALID", std::string(ToStd(fed.message()))});
  }
  const size_t limit = x_.shard.shared.options.limits.split_reply_bytes;
  if (merger_.held_bytes() > limit) return Fail(ReplyTooLarge(limit));
  if (!held_.Resize(merger_.held_bytes() + pending_.size())) return Fail(NoRoomForReply());
  changed_.cancel();
}

// One of n was refused. Behind the beginning of a stream SGLang says so in an event.
void SplitStream::OnRefusal(const ReplyParser& reply, std::string body) {
  if (over()) return;
  if (reply_.begun() && body.find('\n') == std::string::npos) {
    AppendData(body, &pending_);
    changed_.cancel();
    return;
  }
  answer_.emplace();
  answer_->status = reply.status();
  answer_->content_type = std::string(reply.Get("content-type"));
  answer_->body = std::move(body);
  Fail({502, "ENGINE_REPLY_INVALID", "one of n requests was answered without a stream"});
}

void SplitStream::Fail(Refused why) {
  if (!failed_) failed_ = std::move(why);
  Stop();
}

void SplitStream::Stop() {
  SpawnAbortOfAll(x_);
  changed_.cancel();
  room_.cancel();
}

Task<bool> SplitStream::WriteReply() {
  while (!over()) {
    const bool last = left_ == 0;
    if (last || !pending_.empty()) {
      const bool written = co_await WritePending(last);
      if (last && !failed_) co_return written;
    } else {
      auto [ignored] = co_await changed_.async_wait(kAwait);
      (void)ignored;
    }
  }
  if (x_.client.left()) co_return false;
  if (reply_.told()) {  // in the middle of the framing: the client sees that it is cut
    x_.record.reason = failed_->reason;
    x_.client.Leave();
    co_return false;
  }
  if (left_ > 0) x_.head.keep_alive = false;
  bool keep = false;
  if (answer_) {
    keep = co_await PassOn(x_, answer_->status, answer_->content_type, std::move(answer_->body));
  } else {
    keep = co_await Refuse(x_, *failed_);
  }
  if (left_ > 0) x_.client.Leave();  // it need not wait for the others
  co_return keep;
}

Task<bool> SplitStream::WritePending(bool last) {
  std::string events = std::exchange(pending_, {});
  if (last && !merger_.End(&events).ok()) {
    Fail({502, "ENGINE_REPLY_INVALID", "the usage that the engine told is no object"});
    co_return false;
  }
  if (x_.restorer) {
    std::string restored;
    x_.restorer->Feed(events, last, &restored);
    events = std::move(restored);
  }
  held_.Resize(merger_.held_bytes());
  room_.cancel();
  co_return co_await reply_.Write(std::move(events), last);
}

}  // namespace lorry::door
