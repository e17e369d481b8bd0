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

// Everything but the engine's own load: not routed by any table that some io_context still resolves
// by, nothing in flight and the count known, no pause, nothing else at work in the registry.
bool MayUnload(const Core& core, const Residency& residency) {
  if (!IsOnEngine(core, residency) || !IsLeaving(core, residency)) return false;
  if (!core.answers || core.boot.empty() || core.asleep || core.IsWedged() || RegistryBusy(core))
    return false;
  if (core.pause.record.has_value() || core.now < residency.retry_at) return false;
  const bool closed = residency.closed_at.value != 0 && core.reported >= residency.closed_at;
  return closed && core.counts_known && core.InFlight(residency.name) == 0;
}

bool WaitsForASlot(const Core& core) {
  if (core.limits.slots == 0 || SlotsUsed(core) < core.limits.slots) return false;
  return std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
    const fleet::WantedVersion* wanted = core.Wanted(entry.first);
    return wanted != nullptr && wanted->must && wanted->load && !core.IsListed(entry.second) &&
           entry.second.state == ResidencyState::kFetched;
  });
}

// Idle ones first, and of those the oldest; a busy one would not be gone any sooner than it is
// idle.
void MakeRoom(Core& core) {
  if (!WaitsForASlot(core)) return;
  Residency* leaves = nullptr;
  uint32_t leaves_rank = 0;
  for (auto& [name, residency] : core.residencies) {
    const bool idle = core.InFlight(name) == 0;
    if (residency.state == ResidencyState::kUnloading) return;
    if (IsOnEngine(core, residency) && IsLeaving(core, residency) && idle) return;
    const fleet::WantedVersion* wanted = core.Wanted(name);
    const bool may_leave = IsOnEngine(core, residency) && wanted != nullptr && !wanted->must &&
                           !core.IsRowTarget(name);
    if (!may_leave || !idle) continue;
    if (leaves == nullptr || wanted->eviction_rank < leaves_rank) {
      leaves = &residency;
      leaves_rank = wanted->eviction_rank;
    }
  }
  if (leaves != nullptr) leaves->evicting = true;
}

}  // namespace

bool IsLeaving(const Core& core, const Residency& residency) {
  if (core.IsRowTarget(residency.name) && residency.state == ResidencyState::kLoaded) return false;
  if (residency.evicting) return true;
  if (!core.desired.has_value()) return false;
  if (!core.IsWanted(residency.name)) return true;
  // Wanted, but what the engine has under this name is not what this journal loaded there.
  return residency.state != ResidencyState::kLoaded && core.IsListed(residency) &&
         !core.IsListedAsOurs(residency);
}

void Wedge(Core& core, const EngineName& name) {
  if (core.limits.kind != fleet::EngineKind::kSglang || core.IsWedged()) return;
  core.wedged = WedgedRecord{core.boot, name};
  core.Save("wedged", *core.wedged);
}

void HandleUnloadDone(Core& core, const UnloadDone& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kUnloading);
  if (residency == nullptr) return;
  residency->changed = ++core.registry;
  residency->op = 0;
  if (event.outcome == Outcome::kUnknown && core.limits.kind == fleet::EngineKind::kSglang) {
    // Its registry lock is held by this unload until requests that it counts are over, perhaps
    // never.
    core.wedged = WedgedRecord{core.boot, residency->name};
    core.Save("wedged", *core.wedged);
    return;
  }
  residency->doing = Doing::kNothing;
  residency->state = residency->path.empty() ? ResidencyState::kAbsent : ResidencyState::kFetched;
  residency->evicting = false;
  if (event.outcome == Outcome::kOk && !residency->path.empty()) {
    residency->loaded_on = BootId();
    core.SaveName(*residency);
  }
  if (event.outcome != Outcome::kOk) residency->retry_at = core.now + core.config.poll_ms;
}

bool WaitsForQuiet(const Core& core) {
  return std::any_of(core.residencies.begin(), core.residencies.end(),
                     [&](const auto& entry) { return MayUnload(core, entry.second); });
}

void AdvanceUnloads(Core& core) {
  MakeRoom(core);
  if (!core.quiet) return;
  for (auto& [name, residency] : core.residencies) {
    if (!MayUnload(core, residency)) continue;
    residency.state = ResidencyState::kUnloading;
    residency.doing = Doing::kUnloading;
    residency.op = core.NewOp();
    residency.changed = ++core.registry;
    core.effects.push_back(Unload{residency.op, core.boot, name, core.config.unload_deadline_ms});
    return;
  }
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
