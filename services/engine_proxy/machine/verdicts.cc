#include "services/engine_proxy/machine/verdicts.h"

#include <algorithm>
#include <utility>

namespace lorry::proxy {
namespace {

bool IsInTrial(const Residency& residency) {
  return residency.IsAny<at::Loading, at::Verifying, at::Probing, at::Doubted>();
}

// Whether its call is a probe, which asks for a token and does not need the engine's registry of
// adapters: that this registry hangs (the engine is WEDGED) explains no failure of a probe.
bool IsProbed(const Residency& residency) {
  const auto* doubted = std::get_if<at::Doubted>(&residency.phase);
  return residency.Is<at::Probing>() || (doubted != nullptr && doubted->was_probe);
}

void ForgetOneKiller(Core& core) {
  const auto it = std::find_if(core.killers.begin(), core.killers.end(), [&](const auto& killer) {
    return !core.residencies.contains(killer.first);
  });
  if (it == core.killers.end()) return;
  core.Erase(KillerKey(it->first));
  core.killers.erase(it);
}

void Blame(Core& core, const EngineName& name) {
  KillerRecord& killer = core.killers[name];
  ++killer.deaths;
  core.Save(KillerKey(name), killer);
  if (core.killers.size() > kKillersLimit) ForgetOneKiller(core);
}

}  // namespace

void BeginTrial(Core& core, Residency& residency) {
  residency.tried_on = core.boot;
  residency.trial = ++core.last_trial;
}

void EndTrial(Residency& residency) {
  residency.tried_on = BootId();
  residency.trial = 0;
}

// `trial` stays set: the name has not answered a probe yet, and its probe begins a new trial.
void LeaveTrial(Residency& residency) { residency.tried_on = BootId(); }

bool IsSomeoneOnTrial(const Core& core) {
  return std::any_of(core.residencies.begin(), core.residencies.end(),
                     [](const auto& entry) { return IsInTrial(entry.second); });
}

bool IsLeftOnTrial(const Core& core, const Residency& residency) {
  // After a restart of the proxy the boot in the journal counts until the engine was seen.
  const BootId& boot = core.boot.empty() ? core.journal_boot : core.boot;
  return !boot.empty() && residency.tried_on == boot && residency.uncertain_on == boot &&
         !IsInTrial(residency);
}

void EndLeftTrials(Core& core) {
  for (auto& [name, residency] : core.residencies) {
    const bool may_yet_be_loaded = residency.uncertain_on == core.boot;
    if (residency.tried_on != core.boot || may_yet_be_loaded || IsInTrial(residency)) continue;
    LeaveTrial(residency);
    core.SaveName(residency);
  }
}

void JudgeBoot(Core& core, const BootId& boot) {
  if (boot.empty()) return;
  core.accused.reset();
  // A WEDGED engine had to be restarted: its end is not the fault of a load that hung there. A
  // version that was being probed may be blamed all the same.
  const bool was_wedged = core.wedged.has_value() && core.wedged->boot == boot;
  const Residency* first = nullptr;
  for (const auto& [name, residency] : core.residencies) {
    if (residency.tried_on != boot || (was_wedged && !IsProbed(residency))) continue;
    if (first == nullptr || residency.trial < first->trial) first = &residency;
  }
  if (first != nullptr && first->Is<at::Loading>()) {
    core.accused = Accused{std::get<at::Loading>(first->phase).op, first->name};
  } else if (first != nullptr) {
    Blame(core, first->name);
  }
  for (auto& [name, residency] : core.residencies) {
    const bool is_accused = core.accused.has_value() && core.accused->name == name;
    if (residency.tried_on != boot || is_accused) continue;
    EndTrial(residency);
    core.SaveName(residency);
  }
}

void HearAccused(Core& core, OpId load, Outcome outcome) {
  if (!core.accused.has_value() || core.accused->load != load) return;
  const EngineName name = std::exchange(core.accused, std::nullopt)->name;
  // The engine has answered, so it did not end there. The version stays on trial until its probe.
  if (outcome == Outcome::kOk) return;
  if (MayHaveHappened(outcome)) Blame(core, name);
  const auto it = core.residencies.find(name);
  if (it == core.residencies.end()) return;
  EndTrial(it->second);
  core.SaveName(it->second);
}

}  // namespace lorry::proxy
