#include "services/engine_proxy/machine/memory.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/first_after.h"
#include "services/engine_proxy/machine/framework_calls.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/uncounted.h"

namespace lorry::proxy {
namespace {

// Two, as a call that was sent earlier, by this process or one before it, may be carried out only
// after the first look.
constexpr uint32_t kLooksToWake = 2;

// How long the last bytes of what a pause has ended may take from the engine to the door.
constexpr int64_t kLastBytesMs = 5'000;

// Two in a row, because a request that has arrived may not be among what the engine shows yet.
constexpr uint32_t kLooksIdle = 2;

// Writes down that the engine slept since it loaded this: from now on it must be told from the base
// model by its probe, or is loaded anew.
void NoteSlept(Core& core, Residency& residency) {
  if (residency.loaded_on != core.boot || residency.slept_on == core.boot) return;
  residency.slept_on = core.boot;
  core.SaveName(residency);
}

// To be called when memory was released, or weights were changed: no answer of before counts any
// more.
void BelieveNothing(Core& core) {
  const uint64_t change = ++core.registry.changes;
  for (auto& [name, residency] : core.residencies) {
    residency.changed_as_of = change;
    NoteSlept(core, residency);
    if (auto* loading = std::get_if<at::Loading>(&residency.phase)) loading->is_outdated = true;
    if (!residency.IsAny<at::Verifying, at::Probing, at::Loaded>()) continue;
    Move(core, residency, ResidencyEvent::kNotBelieved);
  }
}

void FollowSleep(Core& core) {
  const bool asleep = core.memory.record.has_value() || core.memory.seen_asleep.value_or(false);
  if (std::exchange(core.asleep, asleep) == asleep) return;
  BelieveNothing(core);
  if (!asleep) RenewFrameworkPause(core);
}

void Release(Core& core, std::optional<AsleepRecord> record) {
  if (record.has_value() && record->tags.empty()) record.reset();
  core.memory.looks_awake = 0;
  if (core.memory.record != record) {
    core.memory.record = std::move(record);
    core.memory.record.has_value() ? core.Save("asleep", *core.memory.record)
                                   : core.Erase("asleep");
  }
  FollowSleep(core);
}

MemoryTags Released(const Core& core) {
  return core.memory.record.has_value() ? core.memory.record->tags : MemoryTags();
}

std::string Joined(const MemoryTags& tags) { return absl::StrJoin(tags, ", "); }

// SGLang dies when memory is to be released twice, or taken back twice; vLLM ignores that.
bool RefusesTwice(Core& core, uint64_t ticket, const MemoryTags& tags, bool is_release) {
  if (core.limits.kind != fleet::EngineKind::kSglang) return false;
  const MemoryTags released = Released(core);
  MemoryTags twice;
  for (const std::string& tag : tags) {
    if (released.contains(tag) == is_release) twice.insert(tag);
  }
  if (twice.empty()) return false;
  AnswerNow(core, ticket, Outcome::kRefused, "MEMORY_CONFLICT",
            absl::StrCat(Joined(twice), is_release ? " is released already" : " is not released",
                         ", as far as this proxy knows, and SGLang would die of the call"));
  return true;
}

// Refuses a call for tags of which nobody knows whether SGLang has released them. SGLang does not
// tell, and either call would end it if the tag is in the other state.
bool RefusesDoubted(Core& core, uint64_t ticket, const MemoryTags& tags) {
  if (core.limits.kind != fleet::EngineKind::kSglang || !core.memory.record.has_value())
    return false;
  MemoryTags doubted;
  std::ranges::set_intersection(core.memory.record->doubted, tags,
                                std::inserter(doubted, doubted.end()));
  if (doubted.empty()) return false;
  AnswerNow(
      core, ticket, Outcome::kRefused, "MEMORY_CONFLICT",
      absl::StrCat("whether SGLang has released its ", Joined(doubted),
                   " is not known, as a call for that got no answer, and SGLang would die of a "
                   "wrong one: start the engine again, which then has all of its memory"));
  return true;
}

bool RefusesAway(Core& core, uint64_t ticket) {
  if (!core.boot.empty() && core.answers && !core.IsWedged()) return false;
  if (core.IsWedged()) {
    AnswerNow(core, ticket, Outcome::kRefused, "ENGINE_WEDGED",
              "the engine hangs in its registry of adapters; it needs a restart");
  } else {
    AnswerNow(core, ticket, Outcome::kUnsent, "ENGINE_UNREACHABLE", "the engine does not answer");
  }
  return true;
}

// Whether requests may still run on adapters that an earlier process of this proxy let in.
bool MayHaveOrphans(const Core& core) {
  return std::ranges::any_of(core.residencies, [&](const auto& entry) {
    const Residency& residency = entry.second;
    return residency.uncounted.has_value() && !residency.uncounted->leased &&
           MayHaveUncounted(core, residency);
  });
}

bool IsDrained(const Core& core) {
  const bool is_shut = core.memory.shut_at.value != 0 && core.reported >= core.memory.shut_at;
  return is_shut && core.LiveRequests() == 0 && !MayHaveOrphans(core);
}

// Whether the engine has no requests of an earlier process, of which the door knows nothing, and
// which need not be on any adapter. SGLang dies when memory is released under such a request; vLLM
// ends at once what no client waits for.
bool IsAtRest(const Core& core) {
  return core.limits.kind != fleet::EngineKind::kSglang || core.memory.idle_on == core.boot;
}

// From now on the call in front waits for the engine to be at rest, if it has not before. Returns
// since when.
Tick BeginToWait(Core& core) {
  Memory& memory = core.memory;
  if (!memory.idle_by.has_value()) {
    memory.looks_idle = 0;
    memory.idle_by = core.now + core.config.idle_ms;
  }
  return *memory.idle_by - core.config.idle_ms;
}

// Whether the engine has requests though a framework's pause has ended all that it had. They came
// just as that began, and are held until the engine goes on; or their last bytes are on their way to
// the door.
bool MayHoldLatecomers(const Core& core) {
  return IsHeldByFramework(core) && core.pause.has_ended_all && core.LiveRequests() > 0;
}

// Refuses a call that would wait for those, and with it whoever is to let the engine go on, behind
// it.
bool RefusesLatecomers(Core& core, uint64_t ticket) {
  if (!MayHoldLatecomers(core) || core.now < BeginToWait(core) + kLastBytesMs) return false;
  core.memory.idle_by.reset();
  AnswerNow(core, ticket, Outcome::kRefused, "PAUSE_CONFLICT",
            "the engine holds requests that came just as its pause began, and whose memory would "
            "be gone; continue it first");
  return true;
}

// Refuses a call that has waited too long for the engine to be at rest. False: it may go on
// waiting.
bool RefusesBusy(Core& core, uint64_t ticket) {
  if (core.now < BeginToWait(core) + core.config.idle_ms) return false;
  core.memory.idle_by.reset();
  AnswerNow(core, ticket, Outcome::kRefused, "ENGINE_BUSY",
            "the engine has requests that this door does not know of, and SGLang would die of the "
            "call: end them, or ask again once they have ended");
  return true;
}

// Requests that a framework's pause keeps from ending.
bool AreFrozen(const Core& core) {
  if (!IsHeldByFramework(core)) return false;
  using fleet::PauseKind;
  const PauseKind kind = core.pause.wanted.kind;
  const bool ends = kind == PauseKind::kAbort || kind == PauseKind::kWait;
  return MayHaveOrphans(core) || (!ends && core.LiveRequests() > 0);
}

// Lorry's own pause ends first, and so does what is at work in the engine's registry.
bool IsEngineTaken(const Core& core) {
  return (IsPaused(core) && !IsHeldByFramework(core)) || !IsRegistryQuiet(core);
}

template <typename Call>
void Pass(Core& core, uint64_t ticket, const Call& call) {
  Memory& memory = core.memory;
  core.calls.serving = ticket;
  memory.op = core.NewOp();
  memory.passed_to = core.boot;
  memory.passing = call;
  memory.before = memory.record;
  core.effects.push_back(PassCall{memory.op, core.boot, ticket, core.config.framework_pause_ms});
}

// Writes down, before the engine hears of the call, that what it names is in doubt; Settle ends
// that.
void Doubt(Core& core, AsleepRecord record, const MemoryTags& tags) {
  std::ranges::set_intersection(record.tags, tags,
                                std::inserter(record.doubted, record.doubted.end()));
  Release(core, std::move(record));
}

void Settle(Core& core, const MemoryTags& tags, bool is_release) {
  if (!core.memory.record.has_value()) return;
  AsleepRecord record = *core.memory.record;
  for (const std::string& tag : tags) {
    record.doubted.erase(tag);
    if (!is_release) record.tags.erase(tag);
  }
  Release(core, std::move(record));
}

// The caller sends requests as soon as it hears that the engine has its memory again. So what the
// engine said of its sleep before does not count any more; should somebody put it to sleep again, a
// look that begins from now on will tell.
void Wake(Core& core, const WakeCall& call) {
  const std::optional<AsleepRecord>& record = core.memory.record;
  if (record.has_value() && std::ranges::includes(call.tags, record->tags))
    core.memory.seen_asleep.reset();
  Settle(core, call.tags, /*is_release=*/false);
}

template <typename Call>
bool IsNext(const Core& core) {
  const auto& waiting = core.calls.waiting;
  return !waiting.empty() && core.calls.serving == 0 && core.memory.op == 0 &&
         std::holds_alternative<Call>(waiting.front().call);
}

template <typename Call>
bool IsUnderWay(const Core& core) {
  return core.memory.op != 0 && std::holds_alternative<Call>(core.memory.passing);
}

}  // namespace

bool Take(Core& core, uint64_t ticket, const ReleaseCall& call) {
  if (RefusesAway(core, ticket)) return true;
  if (RefusesDoubted(core, ticket, call.tags)) return true;
  if (RefusesTwice(core, ticket, call.tags, /*is_release=*/true)) return true;
  if (AreFrozen(core)) {
    AnswerNow(core, ticket, Outcome::kRefused, "PAUSE_CONFLICT",
              "the engine is paused with requests in it, whose memory would be gone; continue it "
              "first, or abort them");
    return true;
  }
  if (RefusesLatecomers(core, ticket)) return true;
  if (IsEngineTaken(core) || !IsDrained(core)) return false;
  if (!IsAtRest(core)) return RefusesBusy(core, ticket);
  Pass(core, ticket, call);
  AsleepRecord record = core.memory.record.value_or(AsleepRecord{core.boot});
  record.tags.insert(call.tags.begin(), call.tags.end());
  Doubt(core, std::move(record), call.tags);
  return true;
}

bool Take(Core& core, uint64_t ticket, const WakeCall& call) {
  if (RefusesAway(core, ticket)) return true;
  if (RefusesDoubted(core, ticket, call.tags)) return true;
  if (RefusesTwice(core, ticket, call.tags, /*is_release=*/false)) return true;
  if (IsEngineTaken(core)) return false;
  Pass(core, ticket, call);
  if (core.memory.record.has_value()) Doubt(core, *core.memory.record, call.tags);
  return true;
}

// A framework that holds a pause has seen to what runs: it may mean it to go on with the new
// weights.
bool Take(Core& core, uint64_t ticket, const WeightsCall& call) {
  if (RefusesAway(core, ticket)) return true;
  if (RefusesDoubted(core, ticket, {std::string(kWeightsTag)})) return true;
  if (IsEngineTaken(core)) return false;
  if (!IsHeldByFramework(core)) {
    if (!IsDrained(core)) return false;
    if (!IsAtRest(core)) return RefusesBusy(core, ticket);
  }
  Pass(core, ticket, call);
  BelieveNothing(core);
  return true;
}

void HandlePassDone(Core& core, const PassDone& event) {
  Memory& memory = core.memory;
  if (event.op == 0 || memory.op != event.op) return;
  memory.op = 0;
  // A call that never left changed nothing: looks go on as they did before.
  if (event.outcome != Outcome::kUnsent) memory.heard_since = event.op;
  // The engine lives, though looks at it may have failed while it was at the call: its caller's next
  // one is not refused until another look succeeds.
  const bool is_answer = event.outcome != Outcome::kUnsent && !MayHaveHappened(event.outcome);
  if (is_answer && core.boot == memory.passed_to) core.answers = true;
  AnswerServed(core, event.outcome, event.reason, event.detail);
  if (std::holds_alternative<WeightsCall>(memory.passing)) return BelieveNothing(core);
  if (MayHaveHappened(event.outcome)) return;  // it stays asleep, and in doubt
  if (event.outcome != Outcome::kOk) return Release(core, memory.before);
  if (const auto* wake = std::get_if<WakeCall>(&memory.passing)) return Wake(core, *wake);
  Settle(core, std::get<ReleaseCall>(memory.passing).tags, /*is_release=*/true);
}

bool IsPassing(const Core& core) {
  return core.memory.op != 0 || IsNext<ReleaseCall>(core) || IsNext<WakeCall>(core) ||
         IsNext<WeightsCall>(core);
}

bool IsAsleepOrToBe(const Core& core) { return core.asleep || IsNext<ReleaseCall>(core); }

bool IsUpdatingOrTo(const Core& core) {
  // Under a framework's pause requests wait until it is over.
  if (IsHeldByFramework(core)) return false;
  return IsNext<WeightsCall>(core) || IsUnderWay<WeightsCall>(core);
}

bool IsAsleepWithWeights(const Core& core) {
  const std::optional<AsleepRecord>& record = core.memory.record;
  return record.has_value() && !record->tags.contains(std::string(kWeightsTag));
}

bool IsRestAwaited(const Core& core) { return core.memory.idle_by.has_value(); }

void HandleSaidOccupancy(Core& core, const OccupancySeen& seen) {
  if (!IsRestAwaited(core)) return;
  Memory& memory = core.memory;
  memory.looks_idle = seen.running_and_waiting == 0 ? memory.looks_idle + 1 : 0;
  if (memory.looks_idle >= kLooksIdle) memory.idle_on = core.boot;
}

void AdvanceMemory(Core& core) {
  const bool waits = IsNext<ReleaseCall>(core) || IsNext<WeightsCall>(core);
  if (!waits || (IsAtRest(core) && !MayHoldLatecomers(core))) core.memory.idle_by.reset();
}

std::optional<Tick> MemoryWakeAt(const Core& core) {
  if (!IsRestAwaited(core)) return std::nullopt;
  FirstAfter wake(core.now);
  wake.At(*core.memory.idle_by);
  wake.At(*core.memory.idle_by - core.config.idle_ms + kLastBytesMs);
  wake.At(core.occupancy_due);
  return wake.first();
}

void HandleSaidAsleep(Core& core, const EngineSeen& seen) {
  Memory& memory = core.memory;
  if (seen.boot == memory.passed_to && seen.passed < memory.heard_since) return;
  memory.seen_asleep = seen.asleep;
  const bool is_awake = seen.asleep.has_value() && !*seen.asleep && memory.op == 0;
  memory.looks_awake = is_awake ? memory.looks_awake + 1 : 0;
  // Somebody woke it without this door.
  if (memory.record.has_value() && memory.looks_awake >= kLooksToWake)
    return Release(core, std::nullopt);
  FollowSleep(core);
}

void ForgetMemory(Core& core, const BootId& boot) {
  Memory& memory = core.memory;
  memory.seen_asleep.reset();
  memory.idle_by.reset();
  if (memory.op != 0) {
    memory.op = 0;
    AnswerServed(core, Outcome::kBroken, "ENGINE_RESTARTED",
                 "the engine was started again meanwhile");
  }
  if (memory.record.has_value() && memory.record->boot != boot) return Release(core, std::nullopt);
  FollowSleep(core);
}

std::string RestDetail(const Core& core) {
  if (!core.asleep) {
    if (IsAsleepOrToBe(core))
      return "asleep soon: a framework's call to release memory waits until what runs has ended";
    if (IsUnderWay<WeightsCall>(core))
      return "updating: a framework gives the engine other weights";
    if (IsUpdatingOrTo(core))
      return "updating soon: a framework's call to change weights waits until what runs has ended";
    return "";
  }
  const std::optional<AsleepRecord>& record = core.memory.record;
  if (!record.has_value()) return "asleep: it was put to sleep without this proxy";
  const bool is_sglang = core.limits.kind == fleet::EngineKind::kSglang;
  if (is_sglang && !record->doubted.empty() && core.memory.op == 0)
    return absl::StrCat("asleep: a call for its ", Joined(record->doubted),
                        " got no answer, and SGLang does not tell: it must be started again");
  return absl::StrCat("asleep: a framework released its ", Joined(record->tags),
                      ", and takes that back when it likes");
}

}  // namespace lorry::proxy
