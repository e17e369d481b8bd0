#include "services/engine_proxy/machine/unload.h"

#include <algorithm>

#include "services/engine_proxy/machine/residency.h"

namespace lorry::proxy {
namespace {

using fleet::ResidencyState;

bool IsOnEngine(const Core& core, const Residency& residency) {
  if (residency.doing != Doing::kNothing) return false;
  // What may yet be loaded is unloaded too: the answer says that the load is over, one way or the
  // other.
  return residency.state == ResidencyState::kLoaded || core.IsListed(residency) ||
         IsUncertain(core, residency);
}

// Whether the engine can take an unload of anything: no pause, nothing else at work in its
// registry, counts known.
bool MayUnloadAny(const Core& core) {
  if (!core.answers || core.boot.empty() || core.asleep || !core.counts_known) return false;
  return !core.pause.record.has_value() && !core.IsWedged() && !RegistryBusy(core);
}

// Of one name, where MayUnloadAny: not routed by any table that some io_context still resolves by,
// and nothing in flight. All that is left to ask is the engine's own load.
bool MayUnload(const Core& core, const Residency& residency) {
  if (!IsOnEngine(core, residency) || !IsLeaving(core, residency)) return false;
  if (core.now < residency.unload_after) return false;
  const bool closed = residency.closed_at.value != 0 && core.reported >= residency.closed_at;
  return closed && core.InFlight(residency.name) == 0;
}

bool WaitsForASlot(const Core& core) {
  if (core.limits.slots == 0) return false;
  const bool waits =
      std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
        const fleet::WantedVersion* wanted = entry.second.wanted;
        return entry.second.state == ResidencyState::kFetched && wanted != nullptr &&
               wanted->must && wanted->load && !core.IsListed(entry.second);
      });
  return waits && SlotsUsed(core) >= core.limits.slots;
}

// Idle ones first, and of those the oldest; a busy one would not be gone any sooner than it is
// idle.
bool MakeRoom(Core& core) {
  if (!WaitsForASlot(core)) return false;
  Residency* leaves = nullptr;
  uint32_t leaves_rank = 0;
  for (auto& [name, residency] : core.residencies) {
    const bool idle = core.InFlight(name) == 0;
    if (residency.state == ResidencyState::kUnloading) return false;
    if (IsOnEngine(core, residency) && IsLeaving(core, residency) && idle) return false;
    const fleet::WantedVersion* wanted = residency.wanted;
    const bool may_leave = IsOnEngine(core, residency) && wanted != nullptr && !wanted->must &&
                           !core.IsRowTarget(name);
    if (!may_leave || !idle) continue;
    if (leaves == nullptr || wanted->eviction_rank < leaves_rank) {
      leaves = &residency;
      leaves_rank = wanted->eviction_rank;
    }
  }
  if (leaves != nullptr) leaves->evicting = true;
  return leaves != nullptr;
}

}  // namespace

bool IsLeaving(const Core& core, const Residency& residency) {
  const bool unwanted = core.desired.has_value() && residency.wanted == nullptr;
  const bool leaves = residency.evicting || unwanted;
  if (residency.state == ResidencyState::kLoaded) {
    return leaves && !core.IsRowTarget(residency.name);
  }
  if (leaves || !core.desired.has_value()) return leaves;
  // Wanted, but what the engine has under this name is not what this journal loaded there.
  return core.IsListed(residency) && !core.IsListedAsOurs(residency);
}

void Wedge(Core& core, const EngineName& name) {
  if (core.limits.kind != fleet::EngineKind::kSglang || core.IsWedged()) return;
  core.wedged = WedgedRecord{core.boot, name};
  core.Save("wedged", *core.wedged);
}

void HandleUnloadDone(Core& core, const UnloadDone& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kUnloading);
  if (residency == nullptr) return;
  residency->changed = core.call_ended_at = ++core.registry;
  residency->op = 0;
  if (event.outcome == Outcome::kUnknown && core.limits.kind == fleet::EngineKind::kSglang) {
    // Its registry lock is held by this unload until requests that it counts are over, perhaps
    // never.
    core.wedged = WedgedRecord{core.boot, residency->name};
    core.Save("wedged", *core.wedged);
    return;
  }
  if (!MayHaveHappened(event.outcome)) NoteAnswer(core, *residency, event.outcome);
  residency->doing = Doing::kNothing;
  residency->state = residency->path.empty() ? ResidencyState::kAbsent : ResidencyState::kFetched;
  residency->evicting = false;
  if (event.outcome == Outcome::kOk && !residency->path.empty()) {
    residency->loaded_on = BootId();
    core.SaveName(*residency);
  }
  residency->unload_after = core.now + core.config.poll_ms;
}

bool WaitsForQuiet(const Core& core) {
  return MayUnloadAny(core) &&
         std::any_of(core.residencies.begin(), core.residencies.end(),
                     [&](const auto& entry) { return MayUnload(core, entry.second); });
}

bool AdvanceUnloads(Core& core) {
  const bool made_room = MakeRoom(core);
  if (!core.quiet || !MayUnloadAny(core)) return made_room;
  for (auto& [name, residency] : core.residencies) {
    if (!MayUnload(core, residency)) continue;
    residency.state = ResidencyState::kUnloading;
    residency.doing = Doing::kUnloading;
    residency.op = core.NewOp();
    residency.changed = ++core.registry;
    core.effects.push_back(Unload{residency.op, core.boot, name, core.config.unload_deadline_ms});
    return true;
  }
  return made_room;
}

void MaybeDelete(Core& core, Residency& residency) {
  if (core.boot.empty() || !core.answers || !core.FreshlyListed(residency)) return;
  if (core.now < residency.retry_at || core.IsListed(residency) || IsUncertain(core, residency))
    return;
  const bool path_listed =
      std::any_of(core.listing.begin(), core.listing.end(),
                  [&](const auto& entry) { return entry.second == residency.path; });
  if (path_listed) return;
  residency.doing = Doing::kDeleting;
  residency.op = core.NewOp();
  core.effects.push_back(DeleteDirectory{residency.op, residency.name, residency.path});
}

}  // namespace lorry::proxy
