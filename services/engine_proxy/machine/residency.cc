#include "services/engine_proxy/machine/residency.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "services/engine_proxy/machine/probe.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

using fleet::ResidencyState;

ResidencyState Resting(const Residency& residency) {
  return residency.path.empty() ? ResidencyState::kAbsent : ResidencyState::kFetched;
}

void Rest(Residency& residency) {
  residency.state = Resting(residency);
  residency.doing = Doing::kNothing;
  residency.op = 0;
}

fleet::ProbeRule RuleOf(const Residency& residency) {
  return residency.wanted == nullptr ? fleet::ProbeRule::kAuto : residency.wanted->probe;
}

// Of a load or a probe that did not succeed, on an engine that lives.
fleet::Failure FailureOf(Outcome outcome) {
  if (outcome == Outcome::kRefused) return fleet::Failure::kRefused;
  return outcome == Outcome::kUnknown ? fleet::Failure::kEngineHung : fleet::Failure::kMember;
}

void JudgeLoad(Core& core, Residency& residency) {
  if (!core.IsListedAsOurs(residency)) {
    const bool vanished = residency.reason.empty();
    return Fail(core, residency, vanished ? fleet::Failure::kMember : residency.failure,
                vanished ? "LOAD_VANISHED" : residency.reason, residency.detail);
  }
  residency.state = ResidencyState::kLoading;
  residency.doing = Doing::kProbing;
  residency.op = core.NewOp();
  const fleet::ProbeKind kind = ProbeKindFor(RuleOf(residency), residency.traits);
  core.effects.push_back(Probe{residency.op, core.boot, residency.name, kind});
}

void BeginFetch(Core& core, Residency& residency) {
  residency.state = ResidencyState::kFetching;
  residency.doing = Doing::kFetching;
  residency.op = core.NewOp();
  residency.bytes_done = residency.bytes_total = 0;
  core.effects.push_back(Fetch{residency.op, residency.name, residency.key, residency.digest,
                               residency.traits, residency.render});
}

void BeginHash(Core& core, Residency& residency) {
  residency.doing = Doing::kHashing;
  residency.op = core.NewOp();
  core.effects.push_back(HashDirectory{residency.op, residency.name, residency.digest,
                                       residency.render, residency.path});
}

void BeginCheck(Core& core, Residency& residency) {
  residency.doing = Doing::kChecking;
  residency.op = core.NewOp();
  residency.compared_with = core.base_count;
  residency.fits = false;
  core.effects.push_back(
      CheckShapes{residency.op, residency.name, residency.path, *core.base_model});
}

void BeginLoad(Core& core, Residency& residency) {
  residency.state = ResidencyState::kLoading;
  residency.doing = Doing::kLoading;
  residency.op = core.NewOp();
  residency.changed = ++core.registry;
  residency.reason.clear();
  residency.detail.clear();
  residency.loaded_on = core.boot;
  core.SaveName(
      residency);  // a survivor is trusted only if the journal says that this boot was asked
  core.effects.push_back(Load{residency.op, core.boot, residency.name, residency.path});
}

bool TakesSlot(const Core& core, const Residency& residency) {
  return residency.state == ResidencyState::kLoading ||
         residency.state == ResidencyState::kLoaded ||
         residency.state == ResidencyState::kUnloading || IsUncertain(core, residency) ||
         core.IsListed(residency);
}

bool SlotFree(const Core& core, const Residency& residency) {
  const uint32_t slots = core.limits.slots;
  if (slots == 0) return true;
  const fleet::WantedVersion* wanted = residency.wanted;
  const bool must = wanted == nullptr || wanted->must;
  // The last slot is for what must be loaded next; MAY versions do not stand in its way.
  const uint32_t others = SlotsUsed(core) - (IsUncertain(core, residency) ? 1 : 0);
  return others + (must ? 0 : 1) < slots;
}

// Taken by what cannot leave for another: what MUST be loaded, what rows stand on, what is not
// Lorry's.
uint32_t SlotsKept(const Core& core, const Residency& except) {
  uint32_t kept = 0;
  for (const auto& [name, path] : core.listing) {
    if (core.Find(name) == nullptr) ++kept;
  }
  for (const auto& [name, residency] : core.residencies) {
    const bool must = residency.wanted != nullptr && residency.wanted->must;
    const bool stays = core.IsRowTarget(name) || (must && residency.wanted->load);
    if (&residency != &except && TakesSlot(core, residency) && stays) ++kept;
  }
  return kept;
}

// Said while no version would make room, whatever is unloaded.
void SaySlot(const Core& core, Residency& residency) {
  const bool must = residency.wanted != nullptr && residency.wanted->must;
  const uint32_t kept = must ? SlotsKept(core, residency) : 0;
  if (must && core.limits.slots != 0 && kept >= core.limits.slots) {
    residency.reason = kNoSlot;
    residency.detail = absl::StrCat("all ", core.limits.slots,
                                    " slots of the engine hold what must stay; give it more (",
                                    ToAbsl(fleet::SlotsFlag(core.limits.kind)),
                                    "), keep fewer versions, or end a lease or an alias");
  } else if (residency.reason == kNoSlot) {
    residency.reason.clear();
    residency.detail.clear();
  }
}

void AdvanceFetched(Core& core, Residency& residency) {
  // A row that is locked may open again on what nobody wants any more.
  const bool unwanted =
      core.desired.has_value() && !core.IsWanted(residency) && !core.IsRowTarget(residency.name);
  if (residency.broken || unwanted) return MaybeDelete(core, residency);
  if (!core.IsWanted(residency)) return;
  if (!residency.trusted) return BeginHash(core, residency);
  if (!core.Fits(residency)) {
    if (core.base_model.has_value()) BeginCheck(core, residency);
    return;
  }
  if (!core.IsWantedLoaded(residency) || !core.FreshlyListed(residency) || core.asleep ||
      !core.answers)
    return;
  if (core.IsListedAsOurs(residency)) return JudgeLoad(core, residency);
  if (core.IsListed(residency)) return;  // somebody else's under our name: the unloader's
  if (core.SlotsListed()) SaySlot(core, residency);
  if (core.IsWedged() || RegistryBusy(core) || !core.SlotsListed() || !SlotFree(core, residency))
    return;
  BeginLoad(core, residency);
}

void AdvanceFailed(Core& core, Residency& residency) {
  const bool unwanted = core.desired.has_value() && !core.IsWanted(residency);
  if (unwanted) {
    residency.blocked = false;
    residency.tries = 0;
  } else if (residency.blocked || core.IsMisfit(residency) || core.now < residency.retry_at) {
    return;
  }
  Rest(residency);
}

void AdvanceOne(Core& core, Residency& residency, uint32_t& fetches) {
  if (residency.state == ResidencyState::kFailed && residency.doing == Doing::kNothing)
    AdvanceFailed(core, residency);
  switch (residency.state) {
    case ResidencyState::kAbsent:
      if (residency.doing != Doing::kNothing || !core.IsWanted(residency)) return;
      if (fetches >= core.config.fetches_limit || core.now < residency.retry_at) return;
      // SGLang loads a name again by itself: it goes before its directory is written anew.
      if (core.IsListed(residency)) return;
      ++fetches;
      return BeginFetch(core, residency);
    case ResidencyState::kFetching:
      if (residency.doing != Doing::kFetching || core.IsWanted(residency)) return;
      residency.doing = Doing::kCancelling;
      core.effects.push_back(CancelFetch{residency.op});
      return;
    case ResidencyState::kFetched:
      if (residency.doing == Doing::kNothing) AdvanceFetched(core, residency);
      return;
    default:
      return;
  }
}

void Meet(Core& core, const fleet::WantedVersion& wanted) {
  Residency& residency = core.residencies[wanted.name];
  if (wanted.must) residency.evicting = false;
  residency.name = wanted.name;
  residency.wanted = &wanted;
  residency.key = wanted.key;
  residency.digest = wanted.digest;
  residency.traits = wanted.traits;
  residency.render = wanted.render;
}

// Those that something may have to be done for: MUST first, and among MAY those that would leave
// last.
std::vector<Residency*> ByUrgency(Core& core) {
  std::vector<Residency*> order;
  for (auto& [name, residency] : core.residencies) {
    const ResidencyState state = residency.state;
    if (state == ResidencyState::kAbsent || state == ResidencyState::kFetching ||
        state == ResidencyState::kFetched || state == ResidencyState::kFailed) {
      order.push_back(&residency);
    }
  }
  const auto urgency = [](const Residency* residency) {
    const fleet::WantedVersion* wanted = residency->wanted;
    const bool later = wanted != nullptr && !wanted->must;
    return std::make_pair(later, later ? ~wanted->eviction_rank : 0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](const Residency* a, const Residency* b) { return urgency(a) < urgency(b); });
  return order;
}

bool IsGone(const Core& core, const Residency& residency) {
  return residency.state == ResidencyState::kAbsent && residency.doing == Doing::kNothing &&
         !core.IsWanted(residency) && residency.path.empty() && !core.IsListed(residency);
}

}  // namespace

void NoteAnswer(Core& core, Residency& residency, Outcome outcome) {
  if (MayHaveHappened(outcome)) {
    residency.uncertain_on = core.boot;
    if (++core.hung_loads >= core.config.hung_loads_limit) Wedge(core, residency.name);
    return;
  }
  // Engines take registry calls one after another: an answer to this one means that earlier ones
  // are over.
  core.hung_loads = 0;
  for (auto& [name, other] : core.residencies) {
    if (other.uncertain_on == core.boot && !other.uncertain_on.empty())
      other.changed = core.registry;
    other.uncertain_on = BootId();
  }
}

void Fail(Core& core, Residency& residency, fleet::Failure failure, std::string reason,
          std::string detail) {
  residency.state = ResidencyState::kFailed;
  residency.doing = Doing::kNothing;
  residency.op = 0;
  residency.failure = failure;
  residency.reason = std::move(reason);
  residency.detail = std::move(detail);
  ++residency.tries;
  residency.retry_at = core.now + core.Backoff(residency.tries);
}

void HandleFetchProgress(Core& core, const FetchProgress& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kFetching);
  if (residency == nullptr) return;
  residency->bytes_done = event.bytes_done;
  residency->bytes_total = event.bytes_total;
}

void HandleFetchDone(Core& core, const FetchDone& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kFetching);
  if (residency == nullptr) residency = core.FindByOp(event.op, Doing::kCancelling);
  if (residency == nullptr) return;
  residency->path = event.path;
  residency->trusted = true;
  residency->broken = false;
  residency->tries = residency->waits = 0;
  residency->loaded_on = BootId();
  residency->reason.clear();
  residency->detail.clear();
  Rest(*residency);
  core.SaveName(*residency);
}

void HandleFetchFailed(Core& core, const FetchFailed& event) {
  if (Residency* cancelled = core.FindByOp(event.op, Doing::kCancelling)) return Rest(*cancelled);
  Residency* residency = core.FindByOp(event.op, Doing::kFetching);
  if (residency == nullptr) return;
  if (event.away) {
    residency->retry_at = core.now + core.AwayBackoff(++residency->waits);
    return Rest(*residency);
  }
  residency->waits = 0;
  if (!event.permanent && residency->tries + 1 < core.config.fetch_tries) {
    ++residency->tries;
    residency->retry_at = core.now + core.Backoff(residency->tries);
    return Rest(*residency);
  }
  Fail(core, *residency, fleet::Failure::kMember, event.reason, event.detail);
  if (event.permanent) residency->retry_at = core.now + core.config.retry_max_ms;
}

void HandleFetchCancelled(Core& core, const FetchCancelled& event) {
  if (Residency* residency = core.FindByOp(event.op, Doing::kCancelling)) Rest(*residency);
}

void HandleHashed(Core& core, const DirectoryHashed& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kHashing);
  if (residency == nullptr) return;
  Rest(*residency);
  residency->trusted = event.matches;
  if (event.matches) return;
  residency->broken = true;
  residency->loaded_on = BootId();  // whatever the engine has of it is not what it should be
  core.SaveName(*residency);
}

void HandleShapes(Core& core, const ShapesChecked& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kChecking);
  if (residency == nullptr) return;
  Rest(*residency);
  if (event.outcome != Outcome::kOk) {
    residency->compared_with = 0;
    return Fail(core, *residency, fleet::Failure::kMember, "DISK_FAILED", event.detail);
  }
  residency->fits = event.fit;
  if (!core.IsMisfit(*residency)) return;
  Fail(core, *residency, fleet::Failure::kMisfit, "BASE_MODEL_MISMATCH", event.detail);
}

void HandleDeleted(Core& core, const DirectoryDeleted& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kDeleting);
  if (residency == nullptr) return;
  Rest(*residency);
  if (event.outcome != Outcome::kOk) {
    residency->retry_at = core.now + core.config.poll_ms;
    return;
  }
  residency->path.clear();
  residency->trusted = residency->broken = false;
  residency->state = ResidencyState::kAbsent;
  core.Erase(NameKey(residency->name));
}

void HandleLoadDone(Core& core, const LoadDone& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kLoading);
  if (residency == nullptr) return;
  residency->changed = core.call_ended_at = ++core.registry;
  residency->doing = Doing::kVerifying;  // whatever it answered, the list says what is there
  residency->op = 0;
  NoteAnswer(core, *residency, event.outcome);
  if (event.outcome == Outcome::kOk) return;
  residency->failure = FailureOf(event.outcome);
  residency->reason = event.reason.empty() ? "LOAD_UNKNOWN" : event.reason;
  residency->detail = event.detail;
}

void HandleProbeDone(Core& core, const ProbeDone& event) {
  Residency* residency = core.FindByOp(event.op, Doing::kProbing);
  if (residency == nullptr) return;
  if (event.outcome != Outcome::kOk) {
    return Fail(core, *residency, FailureOf(event.outcome),
                event.reason.empty() ? "PROBE_FAILED" : event.reason, event.detail);
  }
  ProbeVerdict verdict = JudgeProbe(RuleOf(*residency), residency->traits, event.compared);
  // The engine took it and applies none of it: a refusal in all but words.
  if (!verdict.passes)
    return Fail(core, *residency, fleet::Failure::kRefused, verdict.reason, verdict.detail);
  Rest(*residency);
  residency->state = ResidencyState::kLoaded;
  residency->tries = 0;
  residency->reason = std::move(verdict.reason);
  residency->detail = std::move(verdict.detail);
}

void AdoptListing(Core& core) {
  for (const auto& [name, path] : core.listing) {
    if (core.residencies.contains(name)) continue;
    // A proxy that lost its journal does not know a survivor's run, and can unload it without.
    std::optional<VersionKey> key = fleet::KeyOfEngineName(name);
    if (!key.has_value()) continue;
    Residency& survivor = core.residencies[name];
    survivor.name = name;
    survivor.key = *std::move(key);
    core.met = false;
  }
  for (auto& [name, residency] : core.residencies) {
    if (!core.FreshlyListed(residency)) continue;
    if (core.listing.contains(name)) residency.uncertain_on = BootId();
    if (residency.doing == Doing::kVerifying) {
      JudgeLoad(core, residency);
    } else if (residency.state == ResidencyState::kLoaded && !core.IsListedAsOurs(residency)) {
      residency.changed = core.registry;
      Rest(residency);
    }
  }
}

void MeetDesired(Core& core) {
  core.met = true;
  if (!core.desired.has_value()) return;
  core.table_stale = true;
  for (auto& [name, residency] : core.residencies) residency.wanted = nullptr;
  for (const fleet::WantedVersion& wanted : core.desired->wanted) Meet(core, wanted);
}

void AdvanceResidencies(Core& core) {
  if (!core.met) MeetDesired(core);
  const std::vector<Residency*> order = ByUrgency(core);
  uint32_t fetches = 0;
  for (const Residency* residency : order) {
    if (residency->state == ResidencyState::kFetching) ++fetches;
  }
  for (Residency* residency : order) AdvanceOne(core, *residency, fetches);
  for (const Residency* residency : order) {
    if (IsGone(core, *residency)) core.residencies.erase(EngineName(residency->name));
  }
}

bool WaitsForList(const Core& core, const Residency& residency) {
  if (residency.doing == Doing::kVerifying) return true;
  if (residency.doing != Doing::kNothing) return false;
  if (residency.state == ResidencyState::kFetched) {
    return core.desired.has_value() || core.IsWanted(residency);
  }
  return residency.state == ResidencyState::kFailed && !residency.path.empty();
}

uint32_t SlotsUsed(const Core& core) {
  uint32_t used = 0;
  for (const auto& [name, path] : core.listing) {
    if (core.Find(name) == nullptr) ++used;
  }
  for (const auto& [name, residency] : core.residencies) {
    if (TakesSlot(core, residency)) ++used;
  }
  return used;
}

bool IsUncertain(const Core& core, const Residency& residency) {
  return !residency.uncertain_on.empty() && residency.uncertain_on == core.boot;
}

bool RegistryBusy(const Core& core) {
  return std::any_of(core.residencies.begin(), core.residencies.end(), [](const auto& entry) {
    return entry.second.doing == Doing::kLoading || entry.second.doing == Doing::kUnloading;
  });
}

std::optional<Tick> ResidencyWakeAt(const Core& core) {
  std::optional<Tick> wake;
  for (const auto& [name, residency] : core.residencies) {
    for (const Tick tick : {residency.retry_at, residency.unload_after}) {
      if (tick > core.now && (!wake.has_value() || tick < *wake)) wake = tick;
    }
  }
  return wake;
}

}  // namespace lorry::proxy
