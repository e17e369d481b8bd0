#include "services/engine_proxy/machine/engine.h"

#include <algorithm>

#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/uncounted.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

void LeaveEngine(Core& core, const BootId& boot, Residency& residency) {
  // If the boot lives after all, its load or unload may still happen.
  if (residency.IsAny<at::Loading, at::Doubted, at::Unloading>()) residency.LeaveUncertain(boot);
  residency.changed_as_of = core.registry.changes;
  residency.evicting = false;
  residency.must_reload = false;
  Move(core, residency, ResidencyEvent::kBootEnded);
}

void EndBoot(Core& core) {
  if (core.boot.empty()) return;
  const BootId boot = core.boot;
  JudgeBoot(core, boot);
  core.boot = BootId();
  core.answers = false;
  core.registry.listing.clear();
  core.registry.listed_as_of = 0;
  core.registry.op = 0;
  core.occupancy_op = 0;
  core.occupancy_seen.reset();
  core.hung_loads = 0;
  ++core.registry.changes;
  for (auto& [name, residency] : core.residencies) LeaveEngine(core, boot, residency);
}

// Whether an earlier process of this proxy loaded it on this boot, so that requests that it
// admitted or its probe may still run; also where its directory was found to be broken since, and
// what the engine lists under its name is not believed.
bool MayBeInUse(const Core& core, const Residency& residency) {
  const bool was_asked = residency.directory.has_value() && residency.directory->asked;
  return residency.loaded_on == core.boot || (was_asked && core.journal_boot == core.boot);
}

// Whether the call has not been handed out yet.
bool IsHeldBack(const Core& core, OpId load) {
  return std::ranges::any_of(core.effects, [&](const Effect& effect) {
    const auto* call = std::get_if<Load>(&effect);
    return call != nullptr && call->op == load;
  });
}

void BeginBoot(Core& core, const BootId& boot) {
  core.boot = boot;
  for (auto& [name, residency] : core.residencies) {
    MayBeInUse(core, residency) ? FindOnEngine(core, residency) : ForgetUncounted(residency);
  }
  if (core.accused.has_value() && IsHeldBack(core, core.accused->load))
    HearAccused(core, core.accused->load, Outcome::kUnsent);
  if (core.journal_boot != boot) {
    JudgeBoot(core, core.journal_boot);
    core.Save("boot", BootRecord{boot});
  }
  core.accused.reset();  // of the boot that is seen again: it has not ended
  core.journal_boot = boot;
  if (core.wedged.has_value() && core.wedged->boot != boot) {
    core.wedged.reset();
    core.Erase("wedged");
  }
  if (core.unloading.has_value() && core.unloading->boot != boot) {
    core.unloading.reset();
    core.Erase("unloading");
  }
  core.registry.after = core.now;
  ForgetMemory(core, boot);
  ForgetPause(core);
}

bool WantsList(const Core& core) {
  const Registry& registry = core.registry;
  if (core.now < registry.after) return false;
  if (!registry.IsListed() || !registry.SlotsSettled() || core.now >= registry.due) return true;
  return std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
    return !core.FreshlyListed(entry.second) && WaitsForList(core, entry.second);
  });
}

}  // namespace

void HandleSeen(Core& core, const EngineSeen& event) {
  if (event.boot != core.boot) {
    EndBoot(core);
    BeginBoot(core, event.boot);
  } else {
    JudgeDoubts(core);
  }
  core.answers = true;
  core.limits = event.limits;
  HandleSaidAsleep(core, event);
  core.engine_version = event.version;
  core.problem = event.problem;
  core.warning = event.warning;
  core.base_unchecked = event.base_unchecked;
  if (core.base_model == event.base_model) return;
  core.base_model = event.base_model;
  ++core.base_count;
}

void HandleLost(Core& core, const EngineLost& event) {
  core.answers = false;
  core.lost_why = event.why;
  if (!event.ended) return;
  // This process never saw the engine, or it has answered since it seemed to end: the boot in the
  // journal is the one that ended.
  if (core.boot.empty() && !core.accused.has_value()) JudgeBoot(core, core.journal_boot);
  EndBoot(core);
}

void HandleListed(Core& core, const Listed& event) {
  Registry& registry = core.registry;
  if (event.op == 0 || event.op != registry.op) return;
  registry.op = 0;
  if (event.outcome != Outcome::kOk) {
    registry.after = core.now + core.config.poll_ms;
    return;
  }
  registry.listing = event.paths;
  registry.listed_as_of = registry.asked_as_of;
  registry.due = core.now + core.config.list_ms;
  AdoptListing(core);
}

void AdvanceEngine(Core& core) {
  if (core.boot.empty() || !core.answers) return;
  if (core.registry.op == 0 && WantsList(core)) {
    core.registry.op = core.NewOp();
    core.registry.asked_as_of = ++core.registry.changes;
    core.effects.push_back(List{core.registry.op, core.boot});
  }
}

}  // namespace lorry::proxy
