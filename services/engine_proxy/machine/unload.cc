#include "services/engine_proxy/machine/unload.h"

#include <algorithm>

#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/slots.h"
#include "services/engine_proxy/machine/uncounted.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

// Whether something is at work in the engine's registry.
bool IsRegistryTaken(const Core& core) {
  return IsUnloading(core) ||
         std::any_of(core.residencies.begin(), core.residencies.end(), [](const auto& entry) {
           return entry.second.template IsAny<at::Loading, at::Doubted>();
         });
}

// A framework that paused its engine may wait for the slot of whatever is to leave. Where the pause
// has ended all requests none of them keeps an unload waiting, and vLLM's never waits.
bool MayUnloadPaused(const Core& core) {
  if (!IsHeldByFramework(core)) return !IsPausedOrToBe(core);
  return core.limits.kind == fleet::EngineKind::kVllm || HasEndedAll(core);
}

bool MustSleepOn(const Core& core) { return core.asleep && !IsAsleepWithWeights(core); }

// Whether the engine can take an unload of anything: no pause that one would wait for, nothing else
// at work in its registry.
bool MayUnloadAny(const Core& core) {
  if (!core.answers || core.boot.empty() || MustSleepOn(core) || IsPassing(core)) return false;
  return !core.IsWedged() && !IsRegistryTaken(core) && MayUnloadPaused(core);
}

// Whether no call for the name is under way.
bool MayBeAsked(const Residency& residency) {
  return residency.IsAny<at::Absent, at::Fetched, at::Loaded, at::Failed>();
}

// Whether this name may be unloaded, where MayUnloadAny: no table by which some io_context still
// resolves routes to it, and nothing is in flight on it.
bool MayUnload(const Core& core, const Residency& residency) {
  // A name whose load got no answer is unloaded as well: the answer to the unload shows that the
  // load is over, whether it happened or not.
  const bool may_be_read = MayBeAsked(residency) && MayBeRead(core, residency);
  if (!IsOnEngine(core, residency) && !may_be_read) return false;
  if (!IsLeaving(core, residency)) return false;
  if (core.now < residency.unload_after) return false;
  const bool closed = residency.closed_at.value != 0 && core.reported >= residency.closed_at;
  return closed && IsIdle(core, residency);
}

// Asks again for an unload whose answer this process will not get. If the first one hangs, the
// second hangs behind it, and passes what is left of the deadline.
void AskAgain(Core& core) {
  if (!core.unloading.has_value() || core.boot != core.unloading->boot) return;
  // Under a framework's pause one was sent only where it waits for nobody.
  const bool rests =
      MustSleepOn(core) || IsPassing(core) || (IsPaused(core) && !IsHeldByFramework(core));
  if (!core.answers || rests || core.IsWedged()) return;
  const EngineName name = core.unloading->name;
  Residency& residency = core.residencies[name];
  if (residency.name.empty()) {
    const std::optional<VersionKey> key = fleet::KeyOfEngineName(name);
    residency.name = name;
    if (key.has_value()) residency.key = *key;
  }
  Move(core, residency, ResidencyEvent::kUnloadUnanswered);
}

}  // namespace

bool IsOnEngine(const Core& core, const Residency& residency) {
  if (!MayBeAsked(residency)) return false;
  return residency.Is<at::Loaded>() || core.IsListed(residency) || IsUncertain(core, residency);
}

bool IsIdle(const Core& core, const Residency& residency) {
  return core.InFlight(residency.name) == 0 && !MayHaveUncounted(core, residency);
}

bool IsUnloading(const Core& core) {
  return core.unloading.has_value() && core.unloading->boot == core.boot;
}

int64_t UnloadTimeLeft(const Core& core, const EngineName& name) {
  const int64_t whole = core.config.unload_deadline_ms;
  if (!core.unloading.has_value() || core.unloading->name != name) return whole;
  // At least as long as an engine needs to answer that has done it already.
  return std::clamp(core.unloading->until_tick - core.now, core.config.poll_ms, whole);
}

bool IsLeaving(const Core& core, const Residency& residency) {
  const bool unwanted = core.IsUnwanted(residency);
  const bool makes_room = residency.evicting && !MustBeLoaded(core, residency);
  const bool leaves = makes_room || unwanted;
  if (residency.Is<at::Loaded>()) {
    const bool goes_on = core.IsRowTarget(residency.name) && !IsOnDemand(core, residency.name);
    return leaves && !goes_on;
  }
  if (residency.must_reload) return true;
  const bool gives_way = makes_room && IsOnDemand(core, residency.name);
  if (MaySurvive(core, residency) && !gives_way) return false;
  const bool is_told = core.desired.has_value() || IsBinding(residency);
  if (leaves || !is_told) return leaves;
  // Its directory is to be written anew, once the engine has nothing of it and will not read it any
  // more.
  if (residency.directory.has_value() && residency.directory->broken) return true;
  // It is wanted, but is not to be tried again now: after an unload no earlier load can happen any
  // more.
  if (IsLeftOnTrial(core, residency) && !core.IsWantedLoaded(residency)) return true;
  // It is wanted, but what the engine has under its name is not what this journal had it load.
  return core.IsListed(residency) && !core.IsListedAsOurs(residency);
}

void Wedge(Core& core, const EngineName& name) {
  if (core.limits.kind != fleet::EngineKind::kSglang || core.IsWedged()) return;
  core.wedged = WedgedRecord{core.boot, name};
  core.Save("wedged", *core.wedged);
}

void HandleUnloadDone(Core& core, const UnloadDone& event) {
  Residency* residency = core.FindAt<at::Unloading>(event.op);
  if (residency == nullptr) return;
  residency->changed_as_of = core.registry.call_ended_as_of = ++core.registry.changes;
  if (event.outcome == Outcome::kUnknown && core.limits.kind == fleet::EngineKind::kSglang) {
    // Its registry lock is held by this unload until requests that it counts are over, perhaps
    // never.
    Move(core, *residency, ResidencyEvent::kUnloadHangs);
    return;
  }
  if (!MayHaveHappened(event.outcome)) NoteAnswer(core, *residency, event.outcome);
  if (event.outcome == Outcome::kOk) ForgetUncounted(*residency);
  residency->evicting = residency->must_reload = false;
  residency->unload_after = core.now + core.config.poll_ms;
  Move(core, *residency, ResidencyEvent::kUnloadAnswered);
}

bool AdvanceUnloads(Core& core) {
  AskAgain(core);
  const bool made_room = MakeRoom(core);
  if (!MayUnloadAny(core)) return made_room;
  for (auto& [name, residency] : core.residencies) {
    if (!MayUnload(core, residency)) continue;
    if (residency.evicting && core.IsServed(name)) ++core.demand_tally.evictions;
    Move(core, residency, ResidencyEvent::kMayBeUnloaded);
    return true;
  }
  return made_room;
}

}  // namespace lorry::proxy
