#include "services/engine_proxy/machine/residency.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

#include "lib/base/first_after.h"
#include "lib/base/transition.h"
#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/fetching.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/probe.h"
#include "services/engine_proxy/machine/uncounted.h"
#include "services/engine_proxy/machine/unload.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

template <size_t... I>
Phase NewPhase(ResidencyState state, std::index_sequence<I...>) {
  Phase phase;
  ((static_cast<size_t>(state) == I ? (void)phase.emplace<I>() : (void)0), ...);
  return phase;
}

void Enter(Residency& residency, ResidencyState next) {
  const bool rests_without = next == ResidencyState::kFetched && !residency.directory.has_value();
  if (rests_without) next = ResidencyState::kAbsent;
  residency.phase = NewPhase(next, std::make_index_sequence<std::variant_size_v<Phase>>());
}

// The operation that the new state waits for.
template <typename State>
OpId Begin(Core& core, Residency& residency) {
  return std::get<State>(residency.phase).op = core.NewOp();
}

// An engine that is paused, or does not go on yet, answers no token, nor does one without its
// memory: that it lists the name must do. Only bindings get here, under a framework's pause, or
// where it has the weights back.
fleet::ProbeQuestion QuestionTo(const Core& core, const Residency& r) {
  if (IsPaused(core) || core.asleep) return {.kind = fleet::ProbeKind::kPresence};
  return QuestionFor(r.rules, r.traits, r.directory->reference);
}

BindingSource SourceOf(const Core& core, const Residency& r) {
  const auto bound = core.bindings.wanted.find(r.name);
  if (bound == core.bindings.wanted.end()) return {};
  return {bound->second.path, core.base_unchecked ? std::nullopt : core.base_model};
}

void AskFor(Core& core, Residency& r, ResidencyAsk ask, OpId op_before) {
  switch (ask) {
    case ResidencyAsk::kNothing:
      return;
    case ResidencyAsk::kFetch:
      core.effects.push_back(Fetch{Begin<at::Fetching>(core, r), r.name, r.key, r.digest, r.traits,
                                   r.render, SourceOf(core, r)});
      return;
    case ResidencyAsk::kCancel:
      std::get<at::Cancelling>(r.phase).op = op_before;
      core.effects.push_back(CancelFetch{op_before});
      return;
    case ResidencyAsk::kHash:
      core.effects.push_back(HashDirectory{Begin<at::Hashing>(core, r), r.name, r.digest, r.render,
                                           r.directory->path});
      return;
    case ResidencyAsk::kCheck:
      r.directory->compared_with = core.base_count;
      r.directory->fits = false;
      core.effects.push_back(
          CheckShapes{Begin<at::Checking>(core, r), r.name, r.directory->path, *core.base_model});
      return;
    case ResidencyAsk::kDelete:
      core.effects.push_back(
          DeleteDirectory{Begin<at::Deleting>(core, r), r.name, r.directory->path});
      return;
    case ResidencyAsk::kLoad:
      r.changed_as_of = ++core.registry.changes;
      r.directory->asked = true;
      r.slept_on = BootId();
      r.loaded_on = core.boot;  // a survivor is believed only if the journal says that it was asked
      BeginCounting(core, r);
      BeginTrial(core, r);
      core.effects.push_back(Load{Begin<at::Loading>(core, r), core.boot, r.name, r.directory->path,
                                  DirectoryContents{r.key, r.digest, r.traits, r.render}});
      return;
    case ResidencyAsk::kProbe:
      // That an engine took it does not say that it answers (EndLeftTrials).
      if (r.trial != 0 && r.tried_on != core.boot) BeginTrial(core, r);
      core.effects.push_back(
          Probe{Begin<at::Probing>(core, r), core.boot, r.name, QuestionTo(core, r)});
      return;
    case ResidencyAsk::kUnload:
      r.changed_as_of = ++core.registry.changes;
      // Until it is answered, what the engine lists under the name may be gone the next moment.
      r.loaded_on = BootId();
      core.effects.push_back(
          Unload{Begin<at::Unloading>(core, r), core.boot, r.name, UnloadTimeLeft(core, r.name)});
      return;
  }
}

void WriteDown(Core& core, Residency& r, ResidencyWrite write) {
  switch (write) {
    case ResidencyWrite::kNothing:
      return;
    case ResidencyWrite::kName:
      return core.SaveName(r);
    case ResidencyWrite::kNoName:
      return core.Erase(NameKey(r.name));
    case ResidencyWrite::kUnloading:
      core.unloading = UnloadingRecord{core.boot, r.name, core.now + UnloadTimeLeft(core, r.name)};
      core.Save("unloading", *core.unloading);
      return core.SaveName(r);
    case ResidencyWrite::kNoUnloading:
      core.unloading.reset();
      return core.Erase("unloading");
    case ResidencyWrite::kWedged:
      core.unloading.reset();
      core.Erase("unloading");
      return Wedge(core, r.name);
  }
}

OpId OpOf(const Phase& phase) {
  return std::visit(
      [](const auto& state) -> OpId {
        if constexpr (requires { state.op; }) return state.op;
        return 0;
      },
      phase);
}

bool BlocksDirectory(const Core& core, const Residency& residency) {
  return residency.directory->broken ||
         // A row that is locked may open again on what nobody wants any more.
         (core.IsUnwanted(residency) && !core.IsRowTarget(residency.name));
}

void AdvanceFetched(Core& core, Residency& residency) {
  if (BlocksDirectory(core, residency)) {
    if (MayDelete(core, residency)) Move(core, residency, ResidencyEvent::kMayBeDeleted);
    return;
  }
  if (!core.IsWanted(residency) && !MaySurvive(core, residency)) return;
  if (!residency.directory->proven) {
    Move(core, residency, ResidencyEvent::kNotProven);
  } else if (!Fits(core, residency)) {
    if (core.base_model.has_value()) Move(core, residency, ResidencyEvent::kNotCompared);
  } else {
    AdvanceToLoad(core, residency);
  }
}

void AdvanceFailed(Core& core, Residency& residency) {
  if (residency.must_reload) return;  // the unloader's
  const bool unwanted = core.IsUnwanted(residency);
  // It waits for another base model and for nothing else: what is said of it is said of this one.
  const bool was_misfit =
      std::get<at::Failed>(residency.phase).mishap.failure == fleet::Failure::kMisfit;
  if (unwanted) {
    residency.tries = 0;
    residency.retry_at = core.now;
  } else if (was_misfit ? IsMisfit(core, residency) : core.now < residency.retry_at) {
    return;
  }
  Move(core, residency, ResidencyEvent::kMayBeTried);
}

void AdvanceOne(Core& core, Residency& residency, uint32_t& fetches) {
  if (residency.Is<at::Failed>()) AdvanceFailed(core, residency);
  if (residency.Is<at::Absent>() && MayFetch(core, residency, fetches)) {
    ++fetches;
    Move(core, residency, ResidencyEvent::kWanted);
  } else if (residency.Is<at::Fetching>()) {
    if (!core.IsWanted(residency)) Move(core, residency, ResidencyEvent::kNotWanted);
    // The engine loaded it by itself from where it is to be written anew.
    if (core.IsListed(residency)) Move(core, residency, ResidencyEvent::kListed);
  } else if (residency.Is<at::Fetched>()) {
    AdvanceFetched(core, residency);
  }
}

void Meet(Core& core, const fleet::WantedVersion& wanted) {
  Residency& residency = core.residencies[wanted.name];
  if (wanted.must) residency.evicting = false;
  residency.name = wanted.name;
  residency.wanted = &wanted;
  residency.key = wanted.key;
  residency.digest = wanted.digest;
  residency.render = wanted.render;
  const ProbeRules rules{wanted.probe, wanted.probe_gap_ppm};
  if (residency.rules == rules && residency.traits == wanted.traits) return;
  residency.rules = rules;
  residency.traits = wanted.traits;
  core.SaveName(residency);
}

enum class Turn { kFirst, kSecond, kLater };

// MUST has the first turn, and what requests wait for the second, the longest first; after a MUST
// that went before these it is the other way round, so that neither waits for all of the others.
// Among MAY those come first that would leave last.
std::pair<Turn, uint32_t> TurnOf(const Core& core, const Residency& residency) {
  const fleet::WantedVersion* wanted = residency.wanted;
  if (wanted == nullptr || MustBeLoaded(core, residency))
    return {core.must_went_first ? Turn::kSecond : Turn::kFirst, 0};
  if (const std::optional<uint32_t> place = PlaceOf(core, residency))
    return {core.must_went_first ? Turn::kFirst : Turn::kSecond, *place};
  return {Turn::kLater, ~wanted->eviction_rank};
}

// Those that something may have to be done for, in their order; of equal ones those first that
// failed least, so that one that hangs the engine does not keep the others from it.
std::vector<Residency*> ByUrgency(Core& core) {
  using Urgency = std::tuple<Turn, uint32_t, uint32_t>;
  std::vector<std::pair<Urgency, Residency*>> order;
  order.reserve(core.residencies.size());
  for (auto& [name, residency] : core.residencies) {
    if (!residency.IsAny<at::Absent, at::Fetching, at::Fetched, at::Failed>()) continue;
    const auto [turn, place] = TurnOf(core, residency);
    order.push_back({{turn, place, residency.tries}, &residency});
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Residency*> residencies;
  residencies.reserve(order.size());
  for (const auto& [urgency, residency] : order) residencies.push_back(residency);
  return residencies;
}

// What the engine may still list is kept, with what is known of its requests.
bool IsGone(const Core& core, const Residency& residency) {
  return residency.Is<at::Absent>() && !core.IsWanted(residency) &&
         !core.registry.listing.contains(residency.name);
}

}  // namespace

ResidencyState StateOf(const Residency& residency) {
  return static_cast<ResidencyState>(residency.phase.index());
}

bool Move(Core& core, Residency& residency, ResidencyEvent event) {
  const ResidencyTransition* row =
      Take(ResidencyTable(), core.taken.residency, StateOf(residency), event);
  if (row == nullptr) return false;
  const OpId op = OpOf(residency.phase);
  Enter(residency, row->to);
  AskFor(core, residency, row->ask, op);
  WriteDown(core, residency, row->write);
  return true;
}

void Fail(Core& core, Residency& residency, ResidencyEvent event, at::Mishap mishap) {
  if (!Move(core, residency, event)) return;
  ++residency.tries;
  // It may have failed of its files: they are looked at before it is tried again.
  if (residency.directory.has_value()) residency.directory->proven = false;
  // One that hangs keeps all others waiting while it is tried.
  const bool hung = mishap.failure == fleet::Failure::kEngineHung;
  residency.retry_at = core.now + (hung ? core.config.retry_max_ms : core.Backoff(residency.tries));
  std::get<at::Failed>(residency.phase).mishap = std::move(mishap);
}

void MeetDesired(Core& core) {
  core.met = true;
  core.table_stale = true;
  for (auto& [name, residency] : core.residencies) residency.wanted = nullptr;
  for (const auto& [name, bound] : core.bindings.wanted) Meet(core, bound.wanted);
  if (!core.desired.has_value()) return;
  for (const fleet::WantedVersion& wanted : core.desired->wanted) Meet(core, wanted);
  for (auto& [name, residency] : core.residencies) MeetLease(core, residency);
  core.wanted_rows.clear();
  for (const fleet::DesiredRow& row : core.desired->rows) core.wanted_rows[row.adapter] = &row;
}

void AdvanceResidencies(Core& core) {
  if (!core.met) MeetDesired(core);
  const std::vector<Residency*> order = ByUrgency(core);
  uint32_t fetches = 0;
  for (const Residency* residency : order) {
    if (residency->Is<at::Fetching>()) ++fetches;
  }
  for (Residency* residency : order) AdvanceOne(core, *residency, fetches);
  for (const Residency* residency : order) {
    if (IsGone(core, *residency)) core.residencies.erase(EngineName(residency->name));
  }
}

bool MaySurvive(const Core& core, const Residency& residency) {
  if (!core.IsRowTarget(residency.name) || residency.loaded_on.empty()) return false;
  if (residency.loaded_on != (core.boot.empty() ? core.journal_boot : core.boot)) return false;
  if (residency.IsAny<at::Loaded, at::Failed>()) return false;
  if (residency.directory.has_value() && residency.directory->broken) return false;
  return !core.FreshlyListed(residency) || core.IsListedAsOurs(residency);
}

bool WaitsForList(const Core& core, const Residency& residency) {
  if (residency.Is<at::Verifying>()) return true;
  if (residency.Is<at::Fetched>())
    return core.desired.has_value() || core.IsWanted(residency) || IsBinding(residency);
  return residency.Is<at::Failed>() && residency.directory.has_value();
}

std::optional<Tick> ResidencyWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  for (const auto& [name, residency] : core.residencies) {
    wake.At(residency.retry_at);
    wake.At(residency.unload_after);
  }
  return wake.first();
}

}  // namespace lorry::proxy
