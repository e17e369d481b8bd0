#include "services/engine_proxy/door/resume.h"

#include <algorithm>
#include <array>
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

// A request that lasts longer than this many decisions finishes on the version that it has then:
// each costs the engine another pass over all its tokens.
constexpr int kMaxParts = 16;

constexpr std::string_view kEventEnd = "\n\n";
constexpr std::string_view kData = "data:";
constexpr std::string_view kDone = "data: [DONE]\n\n";

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
  if (x_.asks.stream && begun_) co_return co_await FinishStream();
  co_return co_await Finish();
}

Task<bool> ResumedRequest::RunPart() {
  goes_on_ = false;
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
  const LeaveHook hook(x_.client,
                       [this] { SpawnAborts(x_.shard, x_.live->WantAbort(), *x_.facts); });
  if (x_.asks.stream) {
    co_await ReadStream(call, request);
  } else {
    co_await ReadWhole(call, request);
  }
  co_return goes_on_ && !x_.client.left();
}

Task<bool> ResumedRequest::ReadWhole(UpstreamCall& call,
                                     std::span<const asio::const_buffer> request) {
  const size_t limit = x_.shard.shared.options.limits.split_reply_bytes;
  BufferedReply reply = co_await Fetch(call, request, limit, &held_);
  if (reply.result == CallResult::kSilent) {
    x_.head.keep_alive = false;
    co_await RefuseCall(x_, reply.result);
    x_.client.Leave();
    co_await ReadToEnd(call);
    co_return false;
  }
  x_.OnBytes(reply.result == CallResult::kOk && reply.status == 200);
  if (reply.result == CallResult::kOk && reply.status == 200 && !reply.too_large) {
    const auto taken = Take(reply.body);
    if (taken.ok() && before_) co_return true;
  }
  if (!before_) odd_ = std::move(reply);
  co_return false;
}

Task<bool> ResumedRequest::ReadStream(UpstreamCall& call,
                                      std::span<const asio::const_buffer> request) {
  CallResult result = co_await call.Start(request, false);
  if (result == CallResult::kSilent) {
    co_await BreakOff(WhyNoReply(result));
    result = co_await call.WaitForHead();
  }
  if (result != CallResult::kOk) {
    if (!before_) odd_.emplace().result = result;
    co_return false;
  }
  const ReplyParser& reply = call.reply();
  const bool events = reply.status() == 200 && IsEventStream(reply.Get("content-type"));
  if (events && !begun_) {
    begun_ = true;
    keep_ = x_.KeepAlive();
    chunked_ = AppendReplyHead(x_, call, keep_, std::nullopt, &head_);
  }
  const size_t limit = x_.shard.shared.options.limits.split_reply_bytes;
  AnswerWatch watch(x_.live, 0);
  std::string text;
  for (;;) {
    const UpstreamCall::Piece piece = co_await call.Read();
    if (piece.result != CallResult::kOk) {
      const bool is_over = piece.result != CallResult::kSilent;
      if (is_over && before_ && !IsToldHead()) co_return false;  // the client gets the abort
      co_await BreakOff(WhyNoReply(piece.result));
      if (is_over) co_return false;
      call.WaitForEver();
      continue;
    }
    x_.OnBytes(events);
    for (const asio::const_buffer& data : piece.data) {
      const std::string_view bytes(static_cast<const char*>(data.data()), data.size());
      SpawnAborts(x_.shard, watch.Heard(bytes), *x_.facts);
      if (text.size() <= limit) text += bytes;
    }
    if (text.size() > limit) co_await BreakOff(RepliesTooLarge());  // no event is as large
    size_t at = 0;
    for (size_t end; events && (end = text.find(kEventEnd, at)) != std::string::npos;) {
      const std::string event = text.substr(at, end - at);
      at = end + kEventEnd.size();
      if (!x_.client.left()) co_await OnEvent(event);
    }
    text.erase(0, at);
    if (piece.end) break;
  }
  if (!events && !before_) {
    odd_ = BufferedReply{.status = reply.status(),
                         .content_type = std::string(reply.Get("content-type")),
                         .body = std::move(text)};
  }
  call.Finish();
  co_return true;
}

Task<void> ResumedRequest::BreakOff(Refused why) {
  if (x_.client.left()) co_return;
  x_.head.keep_alive = false;
  if (IsToldHead()) {  // it sees that the reply is cut
    x_.record.reason = std::move(why.reason);
  } else {
    co_await Refuse(x_, std::move(why));
  }
  x_.client.Leave();
}

Task<bool> ResumedRequest::OnEvent(std::string_view event) {
  std::string_view json = event;
  if (json.starts_with(kData)) {
    json.remove_prefix(kData.size());
    json.remove_prefix(std::min(json.find_first_not_of(' '), json.size()));
  }
  if (json == "[DONE]" || is_over_ || goes_on_) co_return true;
  const auto taken = json.size() < event.size()
                         ? Take(std::string(json))
                         : absl::StatusOr<std::string>(absl::UnknownError(""));
  if (!taken.ok()) {
    // A comment, or SGLang's words for an error: a continuation's leave the client with the abort.
    if (before_) co_return false;
    co_return co_await Write(std::string(event).append(kEventEnd), false);
  }
  if (goes_on_) co_return true;
  co_return co_await Write("data: " + Shown(*taken, is_over_) + std::string(kEventEnd), false);
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
  goes_on_ = part.is_aborted && x_.flip && x_.flip->flipped() && !x_.live->client_aborted() &&
             start + part.tokens < plan_.most_tokens;
  is_over_ = !goes_on_;
  // What was aborted while it waited says nothing of its prompt.
  if (before_ && part.tokens == 0 && goes_on_) return joined;
  if (part.tokens > 0) {
    spans_.push_back({start, start + part.tokens, x_.resolved.front().key});
    made_by_.push_back(x_.resolved.front());
  }
  before_.emplace(joined);
  LORRY_ASSIGN_OR_RETURN(generated_, ReadGenerated(*before_));
  return joined;
}

Task<bool> ResumedRequest::ResolveAnew() {
  x_.flip.reset();
  x_.admission.Release();
  const Ask ask{x_.asks.adapters, x_.min_version, 1};
  Outcome outcome = x_.shard.shared.router.Resolve(ask);
  if (Held* held = std::get_if<Held>(&outcome)) {
    int64_t held_ms = 0;
    Held first = std::move(*held);
    auto waited = co_await WaitWhileHeld(x_.shard, x_.client, ask, std::move(first), &held_ms);
    x_.record.held_ms += held_ms;
    if (!waited) co_return false;
    outcome = *std::move(waited);
  }
  Admitted* admitted = std::get_if<Admitted>(&outcome);
  if (admitted == nullptr) co_return false;
  x_.admission = std::move(admitted->admission);
  x_.resolved = std::move(admitted->resolved);
  x_.lag_known = x_.shard.shared.router.table()->lag_known;
  NameAnew();
  if (++parts_ < kMaxParts) x_.flip = std::make_unique<FlipWatch>(x_);
  co_return true;
}

// SGLang may still know the id that it has just aborted.
void ResumedRequest::NameAnew() {
  LiveIds& live_ids = x_.shard.shared.live_ids;
  live_ids.Remove(x_.client_ids, x_.live.get());
  x_.ids = IdSeries(x_.shard.NewId(), 1);
  x_.live = std::make_shared<LiveRequest>(x_.ids, 1);
  live_ids.Add(x_.client_ids, x_.live);
  if (!x_.restorer) x_.restorer.emplace();
  x_.restorer->ids.emplace(x_.ids, 1,
                           x_.client_ids.empty() ? ClientIds{{first_id_}, false} : x_.client_ids);
}

Task<bool> ResumedRequest::Finish() {
  if (odd_) {
    if (odd_->too_large) {
      Refused why = RepliesTooLarge();
      co_return co_await Refuse(x_, std::move(why));
    }
    if (odd_->result != CallResult::kOk) co_return co_await RefuseCall(x_, odd_->result);
    co_return co_await Answer(x_, odd_->status, odd_->content_type, std::move(odd_->body));
  }
  std::string reply = Shown(std::string(before_->view()), true);
  x_.resolved = made_by_;
  co_return co_await Answer(x_, 200, "application/json", std::move(reply));
}

Task<bool> ResumedRequest::FinishStream() {
  std::string rest;
  if (!is_over_ && before_) {  // nothing could go on behind the abort
    rest = "data: " + Shown(std::string(before_->view()), true) + std::string(kEventEnd);
  }
  rest += kDone;
  const bool written = co_await Write(std::move(rest), true);
  co_return written&& keep_&& chunked_;
}

std::string ResumedRequest::Shown(std::string reply, bool is_last) {
  if (is_last && (spans_.size() > 1 || x_.head.Get("x-lorry-body") == "1")) {
    const Resolved& last = made_by_.empty() ? x_.resolved.front() : made_by_.back();
    reply = WithLorry(std::move(reply), LorryObject(last, x_.lag_known, spans_));
  }
  if (!x_.restorer || !x_.restorer->ids) return reply;
  std::string shown;
  x_.restorer->ids->Feed(reply, true, &shown);
  return shown;
}

Task<bool> ResumedRequest::Write(std::string text, bool last) {
  x_.record.status = 200;
  std::string head = std::exchange(head_, {});
  std::string_view tail;
  if (chunked_) {
    AppendChunkHead(text.size(), &head);
    tail = last ? "\r\n0\r\n\r\n" : "\r\n";
  }
  std::array<asio::const_buffer, 3> out = {asio::buffer(head), asio::buffer(text),
                                           asio::buffer(tail)};
  std::span<asio::const_buffer> left = out;
  const bool written = x_.client.WriteNow(&left);
  if (left.empty() || !written) co_return written;
  co_return co_await x_.client.WriteRest(left);
}

}  // namespace lorry::door
