// Frameworks that know nothing of Lorry, at the doors: they release the memory of engines and take it
// again, and give them other weights.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/narrate.h"
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {

using proxy::Outcome;

namespace {

constexpr int64_t kWakesAgainMs = 2'000;
constexpr int64_t kPatienceMs = 30'000;  // a request may run for ever
constexpr char kOwnName[] = "own";

// None of a call that is not about memory.
proxy::MemoryTags TagsOf(const proxy::FrameworkCall& call) {
  if (const auto* release = std::get_if<proxy::ReleaseCall>(&call)) return release->tags;
  if (const auto* wake = std::get_if<proxy::WakeCall>(&call)) return wake->tags;
  return {};
}

}  // namespace

void SimProxy::FrameworkAsks(proxy::FrameworkCall call) {
  const uint64_t ticket = ++framework_.last;
  const bool is_wake = std::holds_alternative<proxy::WakeCall>(call);
  framework_.woken = false;
  framework_.open[ticket] = {
      .at = sim_.now(), .is_memory = true, .is_wake = is_wake, .tags = TagsOf(call)};
  framework_.memory[ticket] = call;
  Post(proxy::CallMade{ticket, std::move(call)});
  sim_.queue.In(kPatienceMs, [this, ticket, life = life_] {
    if (life_ == life && alive()) FrameworkLeaves(ticket);
  });
}

void SimProxy::FrameworkReleases(int64_t lasts_ms) {
  if (!alive() || !framework_.open.empty() || !framework_.asleep.empty() || !engine_.up()) return;
  Narrate(sim_, member_.value, "a framework releases the memory");
  framework_.asleep = engine_.boot();
  framework_.back.clear();
  framework_.changed = framework_.bound = false;
  FrameworkAsks(proxy::ReleaseCall{kMemoryTags});
  FrameworkWakesIn(lasts_ms);
}

void SimProxy::FrameworkReleasesForOwn() {
  const bool is_asleep =
      !framework_.asleep.empty() || !engine_.released().empty() || engine_.asleep();
  if (!alive() || !engine_.up() || is_asleep || !framework_.open.empty()) return;
  framework_.must_bind = true;
  FrameworkReleases(kWakesAgainMs);
}

// Whoever has no room for it says NO_SLOT, and an engine whose registry hangs loads nothing.
std::string SimProxy::WhyNoOwn() const {
  constexpr int64_t kLoadedWithinMs = 10'000;
  if (!alive() || !framework_.must_bind || !framework_.bound || engine_.RegistryLocked()) return "";
  if (!engine_.up() || engine_.boot() != framework_.bound_on) return "";
  if (sim_.now() - framework_.bound_at < kLoadedWithinMs) return "";
  const std::string& refusal = binder_.last_refusal();
  if (!binder_.Awaits(kOwnName) && (refusal.empty() || refusal == "NO_SLOT")) return "";
  return absl::StrCat(member_.value, " does not load what a framework waits for, ", refusal);
}

void SimProxy::FrameworkWakesIn(int64_t ms) {
  ++framework_.wakes;
  sim_.queue.In(ms, [this] {
    --framework_.wakes;
    FrameworkWakes();
  });
}

bool SimProxy::ChangesBetweenParts() {
  const bool changes = IsOneIn("changes between " + engine_.boot().value, 400);
  if (std::exchange(framework_.changed, true) || !changes) return false;
  Narrate(sim_, member_.value, "a framework changes the weights that it has back");
  framework_.loses = "between";
  FrameworkAsks(proxy::WeightsCall{});
  return true;
}

bool SimProxy::BindsBetweenParts() {
  const bool binds = framework_.must_bind || IsOneIn("own " + engine_.boot().value, 500);
  if (std::exchange(framework_.bound, true) || !binds) return false;
  Narrate(sim_, member_.value, "a framework waits for its own adapter");
  framework_.bound_at = sim_.now();
  framework_.bound_on = engine_.boot();
  Post(binder_.BindNew(kOwnName));
  return true;
}

// Some change the weights before they take the rest of the memory, and some wait for an adapter of
// their own.
bool SimProxy::IsBetweenParts() {
  if (binder_.Awaits(kOwnName)) return true;
  if (framework_.back != kWeights) return false;
  const bool changes_first = IsOneIn("changes first " + engine_.boot().value, 500);
  return (changes_first && ChangesBetweenParts()) || BindsBetweenParts() || ChangesBetweenParts();
}

// Until it is awake, whatever became of the release; in one call, or part by part.
void SimProxy::FrameworkWakes() {
  if (engine_.boot() != framework_.asleep || !engine_.up()) framework_.asleep = BootId();
  if (framework_.asleep.empty()) return;
  if (alive() && framework_.open.empty() && !IsBetweenParts()) {
    proxy::MemoryTags tags = kMemoryTags;
    for (const std::string& tag : framework_.back) tags.erase(tag);
    const bool must = framework_.must_bind;
    const bool in_parts = tags.size() > 1 && (must || IsOneIn("part " + engine_.boot().value, 330));
    if (in_parts)
      tags.erase(!must && IsOneIn("first " + engine_.boot().value, 500) ? "weights" : "kv_cache");
    Narrate(sim_, member_.value,
            absl::StrCat("a framework takes ", absl::StrJoin(tags, ", "), " again"));
    FrameworkAsks(proxy::WakeCall{std::move(tags)});
  }
  FrameworkWakesIn(kWakesAgainMs);
}

void SimProxy::FrameworkUpdates(const std::string& text) {
  if (!alive() || !framework_.open.empty() || !framework_.asleep.empty()) return;
  Narrate(sim_, member_.value, "a framework changes the weights");
  framework_.loses = text;
  FrameworkAsks(proxy::WeightsCall{});
}

// 6: what the engine would end of. A framework may load an adapter of its own before it takes the
// rest of the memory, and room is made for that; but nothing else.
void SimProxy::CheckReleased(const std::string& what, const proxy::MemoryTags& needed) {
  if (!engine_.up()) return;
  // Somebody put it to sleep without the door, and no look has told yet.
  if (engine_.asleep() && (!knows_asleep_ || was_awake_)) return;
  for (const std::string& tag : engine_.released()) {
    if (needed.contains(tag))
      sim_.oracle.Violate(6, absl::StrCat(what, " is moved on an engine that released its ", tag));
  }
}

// What is known of its sleep here: by a look, unless that began before the engine was woken.
void SimProxy::NoteSleep(const proxy::Event& event) {
  if (const auto* seen = std::get_if<proxy::EngineSeen>(&event); seen && seen->passed >= passed_) {
    stepped_asleep_ = seen->asleep.value_or(false);
    was_awake_ = was_awake_ || !stepped_asleep_;
  }
  const auto* done = std::get_if<proxy::PassDone>(&event);
  if (done == nullptr || !framework_.wakes_all.contains(done->op) || done->outcome != Outcome::kOk)
    return;
  stepped_asleep_ = false;
  was_awake_ = true;
}

// 14: who was told that the engine has its memory again is let in at once.
void SimProxy::CheckWoken() {
  if (!framework_.woken || !machine().door_table().asleep) return;
  sim_.oracle.Violate(
      14, absl::StrCat(member_.value, " refuses requests for a sleep that it said was over"));
}

void SimProxy::Do(const proxy::PassCall& effect) {
  const auto made = framework_.memory.find(effect.ticket);
  if (made == framework_.memory.end())
    return sim_.oracle.Violate(14, absl::StrCat(member_.value, " passes a call that nobody made"));
  const proxy::FrameworkCall call = made->second;
  framework_.memory.erase(made);
  if (!Reaches(effect.boot)) return Later(5, proxy::PassDone{effect.op, Outcome::kUnsent});
  const bool is_sglang = engine_.limits().kind == fleet::EngineKind::kSglang;
  const bool lost = sim_.Chance(sim_.faults.answer_lost);
  const bool is_frozen = engine_.paused_since().has_value();
  const bool is_release = std::holds_alternative<proxy::ReleaseCall>(call);
  const bool is_wake = std::holds_alternative<proxy::WakeCall>(call);
  if (!is_wake && !is_frozen && engine_.RunningForAdapters() > 0)
    sim_.oracle.Violate(6,
                        absl::StrCat(member_.value, " has memory or weights taken from requests"));
  const proxy::MemoryTags& released = engine_.released();
  const proxy::MemoryTags tags = TagsOf(call);
  const bool is_twice = std::ranges::any_of(
      tags, [&](const std::string& tag) { return released.contains(tag) == is_release; });
  if (is_sglang && is_twice)
    sim_.oracle.Violate(6, absl::StrCat(member_.value, " asks SGLang for what it would end of"));
  // A look at the engine may be under way.
  if (seen_boot_ == engine_.boot() && sim_.now() >= blind_until_) Told(Look());
  // Weights that come back are others.
  const bool changes =
      is_wake ? tags.contains("weights") && released.contains("weights") : !is_release;
  proxy::MemoryTags back = framework_.back;
  back.insert(tags.begin(), tags.end());
  if (is_wake && back == kMemoryTags && journal_.contains("asleep"))
    framework_.wakes_all.insert(effect.op);
  if (is_release) engine_.Release(tags);
  if (is_release) framework_.asleep = engine_.boot();
  if (is_release) framework_.back.clear();
  if (is_release) framework_.changed = framework_.bound = false;
  // Its caller may have taken the release for lost with the life before, and is told otherwise now.
  if (is_release && framework_.wakes == 0) FrameworkWakesIn(kWakesAgainMs);
  if (is_wake) engine_.TakeBack(tags);
  if (changes) engine_.Lose(absl::StrCat(framework_.loses, member_.value, sim_.now()));
  EngineChanged();
  const int64_t takes = sim_.Latency(500);
  sim_.queue.In(takes, [this, op = effect.op, lost, life = life_] {
    if (life_ != life) return;
    passed_ = op;
    Post(proxy::PassDone{op, lost ? Outcome::kUnknown : Outcome::kOk});
    EngineChanged();
  });
}

// What has failed may be unloaded, though it must be loaded, so that it is loaded again.
void SimProxy::NoteProbe(const proxy::ProbeDone& done) {
  const auto asked = asked_of_.find(done.op);
  if (asked == asked_of_.end()) return;
  const EngineName& name = asked->second;
  const bool failed = done.outcome != Outcome::kOk || engine_.AnswersWrongly(name);
  failed ? (void)failed_probe_.insert(name) : (void)failed_probe_.erase(name);
  const bool differs = !failed && done.answer.compared.has_value() &&
                       done.answer.compared->difference > done.answer.compared->noise;
  differs ? (void)differed_.insert(name) : (void)differed_.erase(name);
}

}  // namespace lorry::sim
