// Session: a request that names an adapter.
#include <algorithm>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/fleet/selector.h"
#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/in_flight.h"
#include "services/engine_proxy/door/relay.h"
#include "services/engine_proxy/door/reply.h"
#include "services/engine_proxy/door/resume.h"
#include "services/engine_proxy/door/rewrite.h"
#include "services/engine_proxy/door/session.h"
#include "services/engine_proxy/door/split.h"
#include "services/engine_proxy/door/split_stream.h"

namespace lorry::door {
namespace {

// What `lorry why` shows of an id that a client chose.
constexpr size_t kRecordedBytes = 128;

absl::StatusOr<std::optional<MinVersion>> ReadMinVersion(const RequestHead& head) {
  const std::string_view text = head.Get("x-lorry-min-version");
  if (text.empty()) return std::optional<MinVersion>();
  const auto version = fleet::ParseVersion(text);
  using Kind = fleet::Selector::Kind;
  if (!version.ok() || (version->kind != Kind::kNumber && version->kind != Kind::kVersion)) {
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID",
                 "X-Lorry-Min-Version must be a version's number, such as 12, or r2.12 of run 2");
  }
  return std::optional(MinVersion{version->number.value, version->run});
}

// Why this body cannot be read here at all.
std::optional<Refused> Unreadable(const RequestHead& head) {
  if (head.method == "HEAD") return Refused{405, "ROUTE_REFUSED", "use POST"};
  if (head.GetAll("content-encoding").empty()) return std::nullopt;
  return Refused{415, "REQUEST_INVALID", "compressed bodies cannot be read here; send plain JSON"};
}

// Each sample is a request at the engine, and each item of sampling_params is edited for each.
std::optional<Refused> TooManySamples(const BodyFacts& facts) {
  const uint64_t most = std::max(facts.prompts(), facts.n_values.size());
  if (facts.n <= kMaxSplit && facts.n * most <= kMaxBatch) return std::nullopt;
  return Refused{
      400, "N_UNSUPPORTED_ON_SGLANG",
      "the door sends SGLang n requests of one for n > 1: up to n = " + std::to_string(kMaxSplit) +
          " and " + std::to_string(kMaxBatch) + " samples in all; ask for fewer at once"};
}

// Any request that is computed beside it ends the engine. Sending these one after another would not
// help: the door would have to hold all others back, too.
std::optional<Refused> WouldEndTheEngine(const BodyFacts& facts) {
  if (!facts.wants_prompt_logprobs) return std::nullopt;
  return Refused{
      400, "PROMPT_LOGPROBS_UNSUPPORTED",
      "this vLLM runs on a CPU, where its process ends when it computes log-probabilities of a "
      "prompt beside another request; leave out prompt_logprobs (and echo), or ask an engine on a "
      "GPU"};
}

// The answer would not show that it was mixed, and the door cannot foresee what the engine computes
// together.
std::optional<Refused> WouldBeMixed(const EngineFacts& engine, const Exchange& x) {
  if (!engine.mixes_base || !x.resolved.front().name.empty()) return std::nullopt;
  return Refused{
      400, "BASE_UNSUPPORTED",
      "this vLLM runs on a CPU, where it answers for its base model with the weights of an adapter "
      "whenever it computes another request for an adapter beside; name an adapter, or ask an "
      "engine on a GPU"};
}

// What the door calls the samples at the engine, and what the reply must call them.
void NameSamples(Exchange& x, const BodyFacts& facts) {
  const auto prompts = static_cast<uint32_t>(facts.prompts());
  const bool split = facts.n > 1;
  const bool named = RulesOf(x.route.shape).has_ids;
  x.ids = IdSeries(x.record.request_id, named ? prompts * static_cast<uint32_t>(facts.n) : 0);
  x.client_ids = {facts.client_ids,
                  facts.rid.kind == JsonKind::kString && facts.batch > 0 && named};
  const std::string_view key = x.client_ids.empty() ? "" : x.head.Get("authorization");
  x.live = std::make_shared<LiveRequest>(x.ids, prompts, std::string(key));
  if (!x.client_ids.empty()) {
    x.record.client_id = x.client_ids.given.front().substr(0, kRecordedBytes);
    x.shard.shared.live_ids.Add(x.client_ids, x.live);
    x.restorer.emplace().ids.emplace(x.ids, prompts, x.client_ids);
  } else if (split && x.route.shape != BodyShape::kGenerate) {
    // One completion has one id, whichever of its samples a piece is of.
    ClientIds first;
    for (uint32_t prompt = 0; prompt < prompts; ++prompt) first.given.push_back(x.ids.At(prompt));
    x.restorer.emplace().ids.emplace(x.ids, prompts, std::move(first));
  }
}

// What the body and the head ask for, or why not.
std::optional<Refused> ReadAsk(Exchange& x) {
  const auto invalid = [](const absl::Status& why) {
    return Refused{400, "REQUEST_INVALID", std::string(ToStd(why.message()))};
  };
  if (auto why = Unreadable(x.head)) return why;
  x.padded.emplace(PaddedBody::Lent(x.body));
  auto asks = ReadBody(x.kind, x.route.shape, *x.facts, *x.padded);
  if (!asks.ok()) return invalid(asks.status());
  x.asks = *std::move(asks);
  const auto min_version = ReadMinVersion(x.head);
  if (!min_version.ok()) return invalid(min_version.status());
  x.min_version = *min_version;
  if (auto why = TooManySamples(x.asks)) return why;
  return WouldEndTheEngine(x.asks);
}

Ask AskOf(const Exchange& x) {
  const auto references = static_cast<uint32_t>(x.asks.adapters.size());
  return {.adapters = x.asks.adapters,
          .min_version = x.min_version,
          .requests_each = x.asks.engine_requests / references,
          .connections = static_cast<uint32_t>(x.asks.n),
          .base_model = x.asks.base_model,
          .needs_no_token = x.route.shape == BodyShape::kTokens};
}

std::vector<std::string> WeightVersionsOf(const std::vector<Resolved>& resolved) {
  std::vector<std::string> values;
  for (const Resolved& one : resolved) values.push_back(WeightVersion(one));
  return values;
}

// What its client has aborted before any engine had it. Clients of /generate take up again what was
// aborted, and read that from the reply; to an error they ask anew.
Task<bool> AnswerAborted(Exchange& x) {
  Refused why{499, "REQUEST_ABORTED", "its client aborted it while it waited at the door"};
  if (x.route.shape != BodyShape::kGenerate) co_return co_await Refuse(x, std::move(why));
  x.record.reason = why.reason;
  std::vector<std::string> ids;
  for (uint32_t number = 0; number < x.ids.size(); ++number) {
    ids.push_back(x.client_ids.empty() ? x.ids.At(number)
                                       : x.client_ids.At(number % x.live->prompts()));
  }
  const bool is_list = x.asks.batch > 0 || x.asks.n > 1;
  std::string body = AbortedBody(ids, is_list, x.asks.stream);
  const std::string_view type = x.asks.stream ? "text/event-stream" : "application/json";
  co_return co_await Answer(x, 200, type, std::move(body));
}

Task<bool> SendAsStreams(Exchange& x) {
  SplitStream stream(x, x.asks);
  co_return co_await stream.Run();
}

Task<bool> SendResumed(Exchange& x) {
  ResumedRequest request(x, *x.resume);
  co_return co_await request.Run();
}

Task<bool> SendAsCalls(Exchange& x) {
  SplitCall calls(x, x.asks);
  co_return co_await calls.Run();
}

}  // namespace

// No coroutine until it must wait: what a request keeps while it waits is small.
Task<bool> Session::ServeRewritten(Exchange& x) {
  if (auto why = ReadAsk(x)) return Refuse(x, *std::move(why));
  client_.Watch();
  Resolution outcome = shard_.shared.router.Resolve(AskOf(x));
  if (Held* held = std::get_if<Held>(&outcome)) return ServeHeld(x, std::move(*held));
  return ServeResolved(x, std::move(outcome));
}

Task<bool> Session::ServeHeld(Exchange& x, Held held) {
  if (x.kind == fleet::EngineKind::kSglang) NameSamples(x, x.asks);
  const Ask ask = AskOf(x);
  std::optional<Resolution> outcome =
      co_await WaitWhileHeld(shard_, client_, x.live, ask, std::move(held), &x.record.held_ms);
  if (!outcome && client_.left()) co_return false;
  if (!outcome) co_return co_await AnswerAborted(x);
  co_return co_await ServeResolved(x, *std::move(outcome));
}

Task<bool> Session::ServeResolved(Exchange& x, Resolution outcome) {
  if (Refused* refused = std::get_if<Refused>(&outcome)) return Refuse(x, std::move(*refused));
  Admitted& admitted = std::get<Admitted>(outcome);
  x.admission = std::move(admitted.admission);
  x.resolved = std::move(admitted.resolved);
  x.lag_known = shard_.Table().lag_known;
  if (DoorObserver* observer = shard_.shared.options.observer) {
    observer->OnAdmitted(x.resolved.front().label(), x.resolved.front().lag);
  }
  if (!CarriesAdapters(x.kind, x.route.shape) && !x.resolved.front().name.empty()) {
    Refused why{403, "ROUTE_REFUSED",
                std::string(x.head.path) +
                    " of SGLang answers with the base model whatever it is asked for; "
                    "ask for @base there, where policy allows it"};
    return Refuse(x, std::move(why));
  }
  if (auto why = WouldBeMixed(*x.facts, x)) return Refuse(x, *std::move(why));
  return SendRewritten(x);
}

Task<bool> Session::SendRewritten(Exchange& x) {
  std::string model = ReplyModel(x.kind, x.route.shape, *x.facts, x.asks, x.resolved);
  if (x.kind == fleet::EngineKind::kSglang && !x.live) NameSamples(x, x.asks);
  FollowFlips(x);
  if (!model.empty()) {
    if (!x.restorer) x.restorer.emplace();
    x.restorer->model.emplace(std::move(model));
  }
  const bool noted = x.head.Get("x-lorry-body") == "1";
  x.tells_versions = x.kind == fleet::EngineKind::kSglang &&
                     x.route.shape == BodyShape::kGenerate &&
                     (noted || shard_.shared.options.weight_versions);
  if (x.resume) return SendResumed(x);
  if (noted || x.tells_versions) {
    if (!x.restorer) x.restorer.emplace();
    if (noted) x.restorer->note.emplace(x.resolved, x.lag_known, x.asks.n);
    if (x.tells_versions) {
      x.restorer->versions = std::make_unique<WeightVersions>(WeightVersionsOf(x.resolved), x.ids);
    }
  }
  if (x.asks.n > 1) return x.asks.stream ? SendAsStreams(x) : SendAsCalls(x);
  std::vector<std::string> ids;
  for (uint32_t i = 0; i < x.ids.size(); ++i) ids.push_back(x.ids.At(i));
  x.spliced.emplace(x.padded->view(),
                    RewriteEdits(x.kind, x.route.shape, *x.facts, x.asks, x.resolved, ids));
  return RelayRequest(x);
}

}  // namespace lorry::door
