// Session: a request that names an adapter.
#include <algorithm>
#include <charconv>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/door/admit.h"
#include "services/engine_proxy/door/answer.h"
#include "services/engine_proxy/door/relay.h"
#include "services/engine_proxy/door/rewrite.h"
#include "services/engine_proxy/door/session.h"
#include "services/engine_proxy/door/split.h"
#include "services/engine_proxy/door/split_stream.h"

namespace lorry::door {
namespace {

// What `lorry why` shows of an id that a client chose.
constexpr size_t kRecordedBytes = 128;

// X-Lorry-Min-Version: a version's number within the current run.
absl::StatusOr<std::optional<uint64_t>> MinVersion(const RequestHead& head) {
  const std::string_view text = head.Get("x-lorry-min-version");
  if (text.empty()) return std::optional<uint64_t>();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return Error(absl::StatusCode::kInvalidArgument, "REQUEST_INVALID",
                 "X-Lorry-Min-Version must be a version's number");
  }
  return std::optional<uint64_t>(value);
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

// One request after another would not help: any other one that the engine computes beside it is
// enough, and the door would have to keep all of them waiting.
std::optional<Refused> WouldEndTheEngine(const BodyFacts& facts) {
  if (!facts.wants_prompt_logprobs) return std::nullopt;
  return Refused{
      400, "PROMPT_LOGPROBS_UNSUPPORTED",
      "this vLLM runs on a CPU, where its process ends when it computes log-probabilities of a "
      "prompt beside another request; leave out prompt_logprobs (and echo), or ask an engine on a "
      "GPU"};
}

// Nobody could tell from the answer, and which other requests the engine computes beside it is not
// known before.
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
  x.live = std::make_shared<LiveRequest>(x.ids, prompts);
  x.client_ids = {facts.client_ids,
                  facts.rid.kind == JsonKind::kString && facts.batch > 0 && named};
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

}  // namespace

Task<bool> Session::ServeRewritten(Exchange& x) {
  if (auto why = Unreadable(x.head)) co_return co_await Refuse(x, *why);
  x.padded.emplace(std::move(x.body));
  auto facts = ReadBody(x.kind, x.route.shape, *x.facts, *x.padded);
  if (!facts.ok()) co_return co_await RefuseInvalid(x, facts.status());
  auto min_version = MinVersion(x.head);
  if (!min_version.ok()) co_return co_await RefuseInvalid(x, min_version.status());
  if (auto why = TooManySamples(*facts)) co_return co_await Refuse(x, *why);
  if (auto why = WouldEndTheEngine(*facts)) co_return co_await Refuse(x, *why);
  x.record.asked = facts->adapters;
  client_.Watch();
  const auto references = static_cast<uint32_t>(facts->adapters.size());
  const Ask ask{facts->adapters, *min_version, facts->engine_requests / references};
  std::optional<Outcome> outcome = shard_.shared.router.Resolve(ask);
  if (Held* held = std::get_if<Held>(&*outcome)) {
    outcome = co_await WaitWhileHeld(shard_, client_, ask, std::move(*held), &x.record.held_ms);
    if (!outcome) co_return false;
  }
  if (Refused* refused = std::get_if<Refused>(&*outcome)) co_return co_await Refuse(x, *refused);
  Admitted& admitted = std::get<Admitted>(*outcome);
  x.admission = std::move(admitted.admission);
  x.resolved = std::move(admitted.resolved);
  x.lag_known = shard_.shared.router.table()->lag_known;
  if (DoorObserver* observer = shard_.shared.options.observer) observer->OnAdmitted();
  if (!CarriesAdapters(x.kind, x.route.shape) && !x.resolved.front().name.empty()) {
    Refused why{403, "ROUTE_REFUSED",
                std::string(x.head.path) +
                    " of SGLang answers with the base model whatever it is asked for; "
                    "ask for @base there, where policy allows it"};
    co_return co_await Refuse(x, std::move(why));
  }
  if (auto why = WouldBeMixed(*x.facts, x)) co_return co_await Refuse(x, *why);
  co_return co_await SendRewritten(x, *facts);
}

// Not coroutines where they only choose one: what a request waits in is kept small.
Task<bool> Session::SendRewritten(Exchange& x, const BodyFacts& facts) {
  std::string model = ReplyModel(x.kind, x.route.shape, *x.facts, facts, x.resolved);
  if (x.kind == fleet::EngineKind::kSglang) NameSamples(x, facts);
  if (!model.empty()) {
    if (!x.restorer) x.restorer.emplace();
    x.restorer->model.emplace(std::move(model));
  }
  if (facts.n > 1) return facts.stream ? SendAsStreams(x, facts) : SendAsCalls(x, facts);
  std::vector<std::string> ids;
  for (uint32_t i = 0; i < x.ids.size(); ++i) ids.push_back(x.ids.At(i));
  x.spliced.emplace(x.padded->view(),
                    RewriteEdits(x.kind, x.route.shape, *x.facts, facts, x.resolved, ids));
  return PassOn(x);
}

Task<bool> Session::SendAsStreams(Exchange& x, const BodyFacts& facts) {
  SplitStream stream(x, facts);
  co_return co_await stream.Run();
}

Task<bool> Session::SendAsCalls(Exchange& x, const BodyFacts& facts) {
  SplitCall calls(x, facts);
  co_return co_await calls.Run();
}

}  // namespace lorry::door
