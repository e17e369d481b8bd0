#include "services/engine_proxy/machine/loading.h"

#include <optional>
#include <utility>

#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/probe.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/slots.h"
#include "services/engine_proxy/machine/uncounted.h"
#include "services/engine_proxy/machine/unload.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

// A look at the engine that was under way when the connection broke may tell how the engine was
// before that; the second one certainly began after it.
constexpr uint32_t kLooksAfterDoubt = 2;

// Whose failure it is when a load or a probe did not succeed, and the engine lives.
fleet::Failure FailureOf(Outcome outcome) {
  if (outcome == Outcome::kRefused) return fleet::Failure::kRefused;
  return outcome == Outcome::kUnknown ? fleet::Failure::kEngineHung : fleet::Failure::kMember;
}

void Doubt(Core& core, Residency& residency, bool was_probe, at::Mishap mishap) {
  if (!Move(core, residency, ResidencyEvent::kBrokeOff)) return;
  std::get<at::Doubted>(residency.phase) = {
      .mishap = std::move(mishap), .was_probe = was_probe, .since = core.now};
}

bool IsAsleepFor(const Core& core, const Residency& residency) {
  return core.asleep && !(IsBinding(residency) && IsAsleepWithWeights(core));
}

// Notes that the engine has loaded the name again by itself, from a directory that was fetched
// after the last load: from now on no process removes that without having seen that the engine does
// not list it.
void NoteReader(Core& core, Residency& residency) {
  if (!residency.directory.has_value() || residency.directory->asked) return;
  residency.directory->asked = true;
  core.SaveName(residency);
}

// Tries it again in a moment, as nothing is known against it: the engine never heard of the load, or
// one of its nodes reads the files yet.
void PutOff(Core& core, Residency& residency, at::Mishap why) {
  if (!Move(core, residency, ResidencyEvent::kNotBelieved)) return;
  residency.retry_at = core.now + core.AwayBackoff(++residency.waits);
  std::get<at::Fetched>(residency.phase).put_off = std::move(why);
}

// Judges a load that has ended, by a listing that was asked for after that.
void JudgeLoad(Core& core, Residency& residency) {
  // Nor is a version asked for a token while a framework lets the engine go on, and believed without
  // one: it is found a moment later. Under a pause that holds frameworks wait for it.
  const bool is_let_go_on = IsResuming(core) && !IsBinding(residency);
  if (IsAsleepFor(core, residency) || is_let_go_on) {
    Move(core, residency, ResidencyEvent::kNotBelieved);
    return;
  }
  if (core.IsListedAsOurs(residency)) {
    Move(core, residency, ResidencyEvent::kListedAsOurs);
    return;
  }
  at::Mishap mishap =
      std::get<at::Verifying>(residency.phase)
          .mishap.value_or(at::Mishap{fleet::Failure::kMember, "LOAD_VANISHED", ""});
  if (!IsUncertain(core, residency)) EndTrial(residency);
  if (mishap.failure == fleet::Failure::kNone) return PutOff(core, residency, std::move(mishap));
  Fail(core, residency, ResidencyEvent::kNotListed, std::move(mishap));
}

// Since when it needs a slot that is not free.
void NoteWait(const Core& core, Residency& residency, bool needs_slot) {
  std::optional<Tick>& since = std::get<at::Fetched>(residency.phase).needs_slot_since;
  if (!needs_slot) {
    since.reset();
  } else if (!since.has_value()) {
    since = core.now;
  }
}

}  // namespace

bool IsUncertain(const Core& core, const Residency& residency) {
  return !residency.uncertain_on.empty() && residency.uncertain_on == core.boot;
}

bool MayBeRead(const Core& core, const Residency& residency) {
  return !residency.may_be_read_on.empty() && residency.may_be_read_on == core.boot;
}

void NoteAnswer(Core& core, Residency& residency, Outcome outcome) {
  if (outcome == Outcome::kUnsent) return;  // nobody answered
  if (MayHaveHappened(outcome)) {
    residency.LeaveUncertain(core.boot);
    if (outcome == Outcome::kUnknown && ++core.hung_loads >= core.config.hung_loads_limit)
      Wedge(core, residency.name);
    return;
  }
  // Engines take registry calls one after another: an answer to this one means that earlier ones
  // are over.
  core.hung_loads = 0;
  for (auto& [name, other] : core.residencies) {
    if (IsUncertain(core, other)) other.changed_as_of = core.registry.changes;
    other.LeaveUncertain(BootId());
  }
  EndLeftTrials(core);
}

void HandleLoadDone(Core& core, const LoadDone& event) {
  Residency* residency = core.FindAt<at::Loading>(event.op);
  if (residency == nullptr) return HearAccused(core, event.op, event.outcome);
  residency->changed_as_of = core.registry.call_ended_as_of = ++core.registry.changes;
  const bool is_outdated = std::get<at::Loading>(residency->phase).is_outdated;
  // A load without an answer is no sign that the engine hangs, where it slept meanwhile.
  if (is_outdated && event.outcome == Outcome::kUnknown) {
    residency->LeaveUncertain(core.boot);
  } else {
    NoteAnswer(core, *residency, event.outcome);
  }
  const bool is_unsent = event.outcome == Outcome::kUnsent;
  // The engine cannot die of a load that never reached it, nor of one that it says has failed: it may
  // end of something else before its next listing. That may still show the name, from a load before:
  // then its probe begins a new trial.
  const bool is_over = event.outcome != Outcome::kOk && !MayHaveHappened(event.outcome);
  if (is_over && !IsUncertain(core, *residency)) {
    is_unsent ? EndTrial(*residency) : LeaveTrial(*residency);
    core.SaveName(*residency);
  }
  if (!is_unsent) residency->waits = 0;
  at::Mishap mishap{is_unsent ? fleet::Failure::kNone : FailureOf(event.outcome),
                    event.reason.empty() ? "LOAD_UNKNOWN" : event.reason, event.detail};
  if (event.outcome == Outcome::kBroken)
    return Doubt(core, *residency, /*was_probe=*/false, std::move(mishap));
  // Whatever the engine answered, its next listing decides.
  Move(core, *residency, ResidencyEvent::kAnswered);
  if (event.outcome != Outcome::kOk)
    std::get<at::Verifying>(residency->phase).mishap = std::move(mishap);
  if (is_outdated) Move(core, *residency, ResidencyEvent::kNotBelieved);
}

// Fails what was found on the engine, which may have lost it in a sleep, or have had it under other
// weights: that says nothing of the version, and it is loaded anew.
void FailFound(Core& core, Residency& residency, at::Mishap mishap) {
  mishap.failure = fleet::Failure::kMember;
  residency.must_reload = true;
  Fail(core, residency, ResidencyEvent::kFailed, std::move(mishap));
}

void HandleProbeDone(Core& core, const ProbeDone& event) {
  Residency* residency = core.FindAt<at::Probing>(event.op);
  if (residency == nullptr) return;
  at::Mishap mishap{FailureOf(event.outcome), event.reason.empty() ? "PROBE_FAILED" : event.reason,
                    event.detail};
  if (event.outcome == Outcome::kBroken)
    return Doubt(core, *residency, /*was_probe=*/true, std::move(mishap));
  // A long queue is not the version's fault.
  if (event.outcome == Outcome::kUnknown && event.others_heard)
    mishap = {fleet::Failure::kMember, "PROBE_BEHIND_OTHERS",
              "the engine went on answering other requests and did not come to the probe"};
  if (event.outcome != Outcome::kUnknown) EndTrial(*residency);  // else it stays on trial
  // So is what was loaded before a sleep, though the load was not judged until after it.
  const bool was_found =
      std::get<at::Probing>(residency->phase).was_found || residency->slept_on == core.boot;
  if (was_found && (event.outcome == Outcome::kRefused || event.outcome == Outcome::kFailed))
    return FailFound(core, *residency, std::move(mishap));
  if (event.outcome != Outcome::kOk)
    return Fail(core, *residency, ResidencyEvent::kFailed, std::move(mishap));
  EndLeftTrials(core);
  ProbeVerdict verdict =
      JudgeProbe(residency->rules, residency->traits, event.answer, residency->apart_ppm);
  // Where the probe cannot tell whether the engine has lost it in a sleep, it is loaded anew. While
  // the engine sleeps this can wait: nobody is served by it, and it is probed again afterwards.
  const bool may_be_lost =
      residency->slept_on == core.boot && !core.asleep && !verdict.reason.empty();
  if (was_found && (!verdict.passes || may_be_lost))
    return FailFound(core, *residency, {{}, verdict.reason, verdict.detail});
  if (!verdict.passes) {
    // The engine took the version and does not apply it, which counts as a refusal.
    return Fail(core, *residency, ResidencyEvent::kFailed,
                {fleet::Failure::kRefused, verdict.reason, verdict.detail});
  }
  residency->apart_ppm = std::max(residency->apart_ppm, ApartPpm(event.answer));
  Move(core, *residency, ResidencyEvent::kPassed);
  residency->tries = 0;
  at::Loaded& loaded = std::get<at::Loaded>(residency->phase);
  loaded = {.reason = verdict.reason, .detail = verdict.detail, .gap = {}};
  if (loaded.reason.empty() && !residency->directory->differences.empty())
    loaded = {.reason = "BASE_MODEL_DIFFERS", .detail = residency->directory->differences};
  if (event.answer.gap.has_value()) loaded.gap = fleet::ToObserved(*event.answer.gap);
}

void AdvanceToLoad(Core& core, Residency& residency) {
  if (!core.FreshlyListed(residency) || IsAsleepFor(core, residency) || !core.answers) return;
  // A paused engine answers no probe; a framework that paused it itself waits for its own adapters,
  // and would not let it go on before.
  const bool is_paused = IsPausedOrToBe(core) && !(IsHeldByFramework(core) && IsBinding(residency));
  const bool waits = IsSomeoneOnTrial(core) || IsUnloading(core) || is_paused || IsPassing(core);
  if (core.IsListedAsOurs(residency)) {
    const bool to_load = core.IsWantedLoaded(residency) || MaySurvive(core, residency);
    if (!to_load || waits) return;
    Move(core, residency, ResidencyEvent::kListedAsOurs);
    std::get<at::Probing>(residency.phase).was_found = true;
    return;
  }
  if (core.IsListed(residency)) return;  // somebody else's under our name: the unloader's
  if (!core.registry.SlotsSettled()) return;
  SaySlot(core, residency);  // also where another engine tries first: that one may give way to this
  // Whoever has said goodbye is asked for nothing: the leave to try it is over.
  if (!core.IsWantedLoaded(residency) || core.IsWedged() || core.leaves) return;
  if (IsPutOff(core, residency)) return;
  const bool is_needed = IsNeededNow(core, residency);
  const bool is_free = (is_needed || !waits) && IsSlotFree(core, residency);
  NoteWait(core, residency, is_needed && !is_free);
  if (waits || !is_free || LetsOthersFirst(core, residency)) return;
  core.must_went_first = MustBeLoaded(core, residency);
  if (!core.must_went_first && PlaceOf(core, residency).has_value()) ++core.demand_tally.loads;
  Move(core, residency, ResidencyEvent::kGetsSlot);
}

void AdoptListing(Core& core) {
  for (const auto& [name, path] : core.registry.listing) {
    if (core.residencies.contains(name)) continue;
    // A proxy that lost its journal does not know the run of a version that it finds, but need not
    // know it to unload it.
    std::optional<VersionKey> key = fleet::KeyOfEngineName(name);
    if (!key.has_value()) continue;
    Residency& survivor = core.residencies[name];
    survivor.name = name;
    survivor.key = *std::move(key);
    core.met = false;
  }
  for (auto& [name, residency] : core.residencies) {
    if (!core.FreshlyListed(residency)) continue;
    if (core.registry.listing.contains(name)) {
      residency.uncertain_on = BootId();
      FindOnEngine(core, residency);
      NoteReader(core, residency);
    } else {
      residency.must_reload = false;  // it is gone already
    }
    if (residency.Is<at::Verifying>()) {
      JudgeLoad(core, residency);
    } else if (residency.Is<at::Loaded>() && !core.IsListedAsOurs(residency)) {
      residency.changed_as_of = core.registry.changes;
      Move(core, residency, ResidencyEvent::kVanished);
    }
  }
}

void JudgeDoubts(Core& core) {
  for (auto& [name, residency] : core.residencies) {
    auto* doubted = std::get_if<at::Doubted>(&residency.phase);
    if (doubted == nullptr) continue;
    ++doubted->looks;
    if (doubted->looks < kLooksAfterDoubt || core.now - doubted->since < core.config.doubt_ms)
      continue;
    at::Mishap mishap = std::move(doubted->mishap);
    if (doubted->was_probe) {
      EndTrial(residency);
      Fail(core, residency, ResidencyEvent::kFailed, std::move(mishap));
    } else {
      residency.changed_as_of = ++core.registry.changes;  // by a listing of now
      Move(core, residency, ResidencyEvent::kEngineLives);
      std::get<at::Verifying>(residency.phase).mishap = std::move(mishap);
    }
  }
}

}  // namespace lorry::proxy
