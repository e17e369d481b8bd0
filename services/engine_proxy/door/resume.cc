#include "services/engine_proxy/door/resume.h"

#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/heads.h"
#include "services/engine_proxy/door/in_flight.h"
#include "services/engine_proxy/door/rewrite.h"

namespace lorry::door {
namespace {

// A request is generated in at most so many parts, each by one version, and no flip aborts the last
// one: each part costs the engine another pass over all tokens before it.
constexpr int kMaxParts = 16;

}  // namespace

Task<bool> ResumedRequest::Run() {
  first_id_ = x_.ids.At(0);
  for (;;) {
    const bool goes_on = co_await RunPart();
    if (!goes_on) break;
    const bool resolved = co_await ResolveAnew();
    if (!resolved) break;
  }
  if (x_.client.left()) co_return false;
  if (made_by_.empty()) made_by_.push_back(x_.resolved.front());
  if (stream_.begun()) co_return co_await FinishStream();
  co_return co_await Finish();
}

Task<bool> ResumedRequest::RunPart() {
  part_ = Runs();
  std::vector<Edit> edits =
      RewriteEdits(x_.kind, x_.route.shape, *x_.facts, x_.asks, x_.resolved, {x_.ids.At(0)});
  for (Edit& edit : ContinuationEdits(plan_, *x_.padded, generated_)) {
    edits.push_back(std::move(edit));
  }
  const SplicedBody body(x_.padded->view(), std::move(edits));
  size_t size = 0;
  for (const std::string_view piece : body.pieces()) size += piece.size();
  const std::string head = EngineHead(x_, size);
  std::vector<asio::const_buffer> request = {asio::buffer(head)};
  for (const std::string_view piece : body.pieces())
    request.emplace_back(piece.data(), piece.size());
  UpstreamCall call(x_.shard.pool, x_.shard.shared.options.limits);
  const LeaveHook hook(x_.client, [this] { SpawnAbortOfAll(x_); });
  CallResult started = co_await call.Start(request, false);
  if (started == CallResult::kSilent) {
    // The client hears that now, but the request is in flight until the engine has ended it.
    co_await BreakOff(WhyNoReply(started));
    started = co_await call.WaitForHead();
  }
  if (started != CallResult::kOk) {
    PassInstead({.result = started, .body = call.Problem(started)});
  } else if (x_.asks.stream && HasBegunStream(call.reply())) {
    co_await ReadStream(call);
  } else {
    co_await ReadWhole(call);
  }
  co_return std::holds_alternative<GoesOn>(part_) && !x_.client.left();
}

Task<void> ResumedRequest::ReadWhole(UpstreamCall& call) {
  BufferedReply reply =
      co_await Collect(call, x_.shard.shared.options.limits.split_reply_bytes, &held_);
  if (reply.result == CallResult::kSilent) {
    co_await BreakOff(WhyNoReply(reply.result));
    co_return co_await ReadToEnd(call);
  }
  const bool answered = reply.result == CallResult::kOk && reply.status == 200;
  x_.OnBytes(answered);
  if (answered && !x_.asks.stream) (void)Take(reply.body);
  PassInstead(std::move(reply));
}

Task<void> ResumedRequest::ReadStream(UpstreamCall& call) {
  if (made_by_.empty()) stream_.Begin(call);  // its head names who makes the first token
  const size_t limit = x_.shard.shared.options.limits.split_reply_bytes;
  AnswerWatch watch(x_.live, 0);
  EventReader events;
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.result == CallResult::kSilent) {
      co_await BreakOff(WhyNoReply(piece.result));
      call.WaitForEver();
      continue;
    }
    if (piece.result != CallResult::kOk) {
      // If the connection broke after the part's last event, nothing is lost. If the client has
      // been sent nothing yet, what the parts before generated can be the whole, aborted answer.
      const bool is_missed = std::holds_alternative<Runs>(part_) && (stream_.told() || !before_);
      if (is_missed) co_await BreakOff(WhyNoReply(piece.result, call.Problem(piece.result)));
      co_return;
    }
    x_.OnBytes(/*engine_spoke=*/true);
    for (const asio::const_buffer& data : piece.data) {
      const std::string_view bytes(static_cast<const char*>(data.data()), data.size());
      SpawnAborts(x_.shard, watch.Heard(bytes), *x_.facts);
      if (!x_.client.left()) events.Add(bytes);
    }
    while (const auto event = events.Next()) co_await OnEvent(*event);
    if (events.held_bytes() > limit) co_await BreakOff(ReplyTooLarge(limit));  // one event of it
    if (piece.end) break;
  }
  call.Finish();
}

Task<void> ResumedRequest::BreakOff(Refused why) {
  if (x_.client.left()) co_return;
  x_.head.keep_alive = false;
  if (stream_.told()) {  // too late for an error: the client sees that its reply is cut off
    x_.record.reason = std::move(why.reason);
    co_return x_.client.Leave();
  }
  co_await Refuse(x_, std::move(why));
  x_.client.Leave();
}

void ResumedRequest::PassInstead(BufferedReply reply) {
  if (!before_) part_ = std::move(reply);
}

Task<void> ResumedRequest::OnEvent(std::string_view event) {
  const auto data = DataOf(event);
  if (!std::holds_alternative<Runs>(part_) || data == kDoneData) co_return;
  auto taken = data ? Take(std::string(*data)) : absl::UnknownError("a comment");
  if (std::holds_alternative<GoesOn>(part_)) co_return;
  std::string shown;
  if (taken.ok()) {
    AppendData(Shown(*std::move(taken), std::holds_alternative<Over>(part_)), &shown);
  } else if (!before_) {  // where a continuation fails, FinishStream sends the abort before it
    AppendEvent(event, &shown);
  }
  if (!shown.empty()) co_await stream_.Write(std::move(shown), false);
}

absl::StatusOr<std::string> ResumedRequest::Take(std::string reply) {
  const PaddedBody body(std::move(reply));
  LORRY_ASSIGN_OR_RETURN(Generated part, ReadGenerated(body));
  std::string joined(body.view());
  if (before_) {
    LORRY_ASSIGN_OR_RETURN(joined, Continued(*before_, std::move(joined)));
  }
  if (!part.is_over) return joined;
  const uint64_t start = generated_.tokens;
  // Some SGLang list the last token alone where they abort a stream that waits in their queue again
  // (tokenizer_manager.py, _handle_abort_req): nothing can go on behind tokens that are not known.
  const bool goes_on = part.is_aborted && part.lists_all && x_.flip && x_.flip->flipped() &&
                       !ClientAborted() && start + part.tokens < plan_.most_tokens;
  // A part that was aborted before its first token says nothing that is worth keeping.
  const bool says_nothing = before_ && part.tokens == 0 && goes_on;
  if (!says_nothing) {
    PaddedBody all(joined);
    LORRY_ASSIGN_OR_RETURN(generated_, ReadGenerated(all));
    before_ = std::move(all);
  }
  if (part.tokens > 0) {
    spans_.push_back({start, start + part.tokens, x_.resolved.front().key});
    made_by_.push_back(x_.resolved.front());
  }
  part_ = goes_on ? Part(GoesOn()) : Part(Over());
  return joined;
}

Task<bool> ResumedRequest::ResolveAnew() {
  x_.flip.reset();
  x_.admission.Release();
  const Ask ask{x_.asks.adapters, x_.min_version, 1};
  Resolution outcome = x_.shard.shared.router.Resolve(ask);
  if (Held* held = std::get_if<Held>(&outcome)) {
    int64_t held_ms = 0;
    Held first = std::move(*held);
    auto waited =
        co_await WaitWhileHeld(x_.shard, x_.client, x_.live, ask, std::move(first), &held_ms);
    x_.record.held_ms += held_ms;
    if (!waited) co_return false;
    outcome = *std::move(waited);
  }
  Admitted* admitted = std::get_if<Admitted>(&outcome);
  if (admitted == nullptr || ClientAborted()) co_return false;
  x_.admission = std::move(admitted->admission);
  x_.resolved = std::move(admitted->resolved);
  x_.lag_known = x_.shard.Table().lag_known;
  NameAnew();
  if (++parts_ < kMaxParts) x_.flip = std::make_unique<FlipWatch>(x_);
  co_return true;
}

// Each part has an id of its own, as SGLang may still know the one that it has just aborted.
void ResumedRequest::NameAnew() {
  LiveIds& live_ids = x_.shard.shared.live_ids;
  live_ids.Remove(x_.client_ids, x_.live.get());
  x_.ids = IdSeries(x_.shard.NewId(), 1);
  x_.live = std::make_shared<LiveRequest>(x_.ids, 1, x_.live->authorization());
  live_ids.Add(x_.client_ids, x_.live);
  if (!x_.restorer) x_.restorer.emplace();
  x_.restorer->ids.emplace(x_.ids, 1,
                           x_.client_ids.empty() ? ClientIds{{first_id_}, false} : x_.client_ids);
}

Task<bool> ResumedRequest::Finish() {
  if (BufferedReply* other = std::get_if<BufferedReply>(&part_)) {
    if (other->dropped) co_return co_await Refuse(x_, *std::move(other->dropped));
    if (other->result != CallResult::kOk) {
      co_return co_await RefuseCall(x_, other->result, std::move(other->body));
    }
    co_return co_await PassOn(x_, other->status, other->content_type, std::move(other->body));
  }
  std::string reply = Shown(std::string(before_->view()), true);
  x_.resolved = made_by_;
  co_return co_await Answer(x_, 200, "application/json", std::move(reply));
}

Task<bool> ResumedRequest::FinishStream() {
  std::string rest;
  // No part has ended the sequence itself, so it ends with the abort of what was generated.
  const bool ends_as_before = before_ && !std::holds_alternative<Over>(part_);
  if (ends_as_before) AppendData(Shown(std::string(before_->view()), true), &rest);
  AppendData(kDoneData, &rest);
  co_return co_await stream_.Write(std::move(rest), true);
}

std::string ResumedRequest::Shown(std::string reply, bool is_last) {
  const Resolved& last = is_last && !made_by_.empty() ? made_by_.back() : x_.resolved.front();
  if (x_.tells_versions) {
    std::string told;
    WeightVersions({WeightVersion(last)}, {}).Feed(reply, &told);
    reply = std::move(told);
  }
  if (is_last && (spans_.size() > 1 || x_.head.Get("x-lorry-body") == "1")) {
    reply = WithLorry(std::move(reply), LorryObject(last, x_.lag_known, spans_));
  }
  if (!x_.restorer || !x_.restorer->ids) return reply;
  std::string shown;
  x_.restorer->ids->Feed(reply, true, &shown);
  return shown;
}

}  // namespace lorry::door
