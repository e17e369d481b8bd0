#include "services/engine_proxy/machine/uncounted.h"

#include <algorithm>
#include <utility>

#include "lib/base/first_after.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

// Two in a row, because a request that has arrived at the engine may not be among what it shows
// yet.
constexpr uint32_t kAnswersEnough = 2;

bool IsLeased(const Residency& residency) {
  return residency.wanted != nullptr && residency.wanted->leased;
}

// Whether the end of such requests is waited for, with a deadline; not while more of them may come.
bool IsAwaited(const Residency& residency) {
  return residency.uncounted.has_value() && residency.uncounted->until.has_value();
}

void End(Core& core, Residency& residency) {
  const bool was_leased = residency.uncounted->leased;
  residency.uncounted.reset();
  if (was_leased) core.SaveName(residency);
}

// Whether the engine has no request under the name. An engine that does not say which names its
// requests use has none but the door's while it has no more requests than the door counts. A
// request that has ended at the engine, and not yet at the door, would hide one that the door does
// not know. So the engine's number is compared with the lowest count of the door from the moment of
// the question until door_lag_ms after the answer.
bool ShowsNone(const Core& core, const OccupancySeen& seen, const EngineName& name) {
  if (seen.names.has_value()) return !seen.names->contains(name);
  return seen.running_and_waiting <= core.live_low;
}

// Begins to wait for the end of a lease holder's requests, or stops it. For as long as the name is
// leased more of them may come, so that nothing is waited for, unless it has to be unloaded all the
// same, as what the engine has of it is not believed. While the engine sleeps it cannot be unloaded
// yet.
void AwaitItsEnd(const Core& core, Residency& residency) {
  if (!residency.uncounted.has_value() || !residency.uncounted->leased) return;
  Uncounted& uncounted = *residency.uncounted;
  if (IsLeased(residency) && (core.asleep || !IsLeaving(core, residency))) {
    uncounted = Uncounted{.leased = true};
  } else if (!uncounted.until.has_value()) {
    uncounted.until = core.now + core.config.drain_ms;
  }
}

void Judge(Core& core) {
  if (!core.occupancy_seen.has_value() || core.now < core.judge_at) return;
  const OccupancySeen seen = *std::exchange(core.occupancy_seen, std::nullopt);
  for (auto& [name, residency] : core.residencies) {
    if (!IsAwaited(residency)) continue;
    uint32_t& shows_none = residency.uncounted->shows_none;
    shows_none = ShowsNone(core, seen, name) ? shows_none + 1 : 0;
    if (shows_none >= kAnswersEnough) End(core, residency);
  }
}

// Requests that came under a pause wait in the engine until it goes on: they neither end with their
// connection nor show in its load. What an earlier process let in came before a framework's pause
// that this one has begun, and has ended with it where that ended all, but for bytes on their way.
void WaitOutThePause(Core& core) {
  core.occupancy_seen.reset();
  for (auto& [name, residency] : core.residencies) {
    if (!IsAwaited(residency)) continue;
    residency.uncounted->shows_none = 0;
    std::optional<Tick>& until = residency.uncounted->until;
    if (residency.uncounted->leased || !HasEndedAll(core)) {
      until = std::max(*until, core.now + core.config.orphans_ms);
    } else if (core.now >= *until) {
      End(core, residency);
    }
  }
}

}  // namespace

void FindOnEngine(const Core& core, Residency& residency) {
  if (residency.known_on == core.boot) return;
  residency.known_on = core.boot;
  if (IsLeased(residency)) return;  // they go on
  const bool was_leased = residency.uncounted.has_value() && residency.uncounted->leased;
  const int64_t limit_ms = was_leased ? core.config.drain_ms : core.config.orphans_ms;
  residency.uncounted = Uncounted{.leased = was_leased, .until = core.now + limit_ms};
}

void MeetLease(Core& core, Residency& residency) {
  const bool is_known = residency.uncounted.has_value() && residency.uncounted->leased;
  if (!IsLeased(residency) || is_known) return;
  residency.uncounted = Uncounted{.leased = true};
  core.SaveName(residency);
}

void BeginCounting(const Core& core, Residency& residency) {
  // The engine may have dropped the name under requests that an earlier process let in, or under
  // whoever had it leased.
  const std::optional<Uncounted> found = residency.uncounted;
  ForgetUncounted(residency);
  residency.known_on = core.boot;
  if (!residency.uncounted.has_value()) residency.uncounted = found;
  // What an earlier process let in may wait there for the end of the pause, which is older than
  // this one, though the engine dropped the name meanwhile.
  const bool is_older = core.pause.by_framework && core.pause.is_doubtful;
  if (is_older && !residency.uncounted.has_value())
    residency.uncounted = Uncounted{.until = core.now + core.config.orphans_ms};
}

void ForgetUncounted(Residency& residency) {
  residency.known_on = BootId();
  residency.uncounted.reset();
  if (IsLeased(residency)) residency.uncounted = Uncounted{.leased = true};
}

bool MayHaveUncounted(const Core& core, const Residency& residency) {
  if (!residency.uncounted.has_value()) return false;
  // A load without an answer may have happened since the listing, and clients whose lease has ended
  // may use the name again.
  const bool may_have_come = MayBeRead(core, residency) && !IsLeased(residency);
  const bool is_absent =
      core.FreshlyListed(residency) && !core.IsListed(residency) && !may_have_come;
  return !(residency.uncounted->leased && is_absent);
}

void HandleOccupancy(Core& core, const OccupancySeen& event) {
  if (event.op == 0 || event.op != core.occupancy_op) return;
  core.occupancy_op = 0;
  core.occupancy_due = core.now + core.config.poll_ms;
  if (event.outcome != Outcome::kOk) return;
  HandleSaidOccupancy(core, event);
  core.occupancy_seen = event;
  core.judge_at = core.now + core.config.door_lag_ms;
}

void AdvanceUncounted(Core& core) {
  for (auto& [name, residency] : core.residencies) AwaitItsEnd(core, residency);
  if (IsPaused(core)) return WaitOutThePause(core);
  Judge(core);
  for (auto& [name, residency] : core.residencies) {
    if (IsAwaited(residency) && core.now >= *residency.uncounted->until) End(core, residency);
  }
}

void AskOccupancyIfNeeded(Core& core) {
  if (core.boot.empty() || !core.answers || core.occupancy_op != 0 || core.now < core.occupancy_due)
    return;
  const bool is_needed =
      IsRestAwaited(core) || std::any_of(core.residencies.begin(), core.residencies.end(),
                                         [](const auto& entry) { return IsAwaited(entry.second); });
  if (!is_needed) return;
  core.occupancy_op = core.NewOp();
  core.live_low = core.LiveRequests();
  core.effects.push_back(AskOccupancy{core.occupancy_op, core.boot});
}

std::optional<Tick> UncountedWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  if (core.occupancy_seen.has_value()) wake.At(core.judge_at);
  for (const auto& [name, residency] : core.residencies) {
    if (!IsAwaited(residency)) continue;
    wake.At(*residency.uncounted->until);
    wake.At(core.occupancy_due);
  }
  return wake.first();
}

}  // namespace lorry::proxy
