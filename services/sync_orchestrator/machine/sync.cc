#include "services/sync_orchestrator/machine/sync.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/a_few.h"
#include "lib/base/first_after.h"
#include "lib/fleet/quiesce.h"
#include "lib/fleet/window.h"
#include "services/sync_orchestrator/machine/barrier.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/visits.h"
#include "services/sync_orchestrator/machine/waiting.h"

namespace lorry::sync {

void Stand(Core& core, const PoolId& id, Pool& pool, const SyncTransition& row) {
  pool.no_slot_since.reset();
  if (row.to == SyncPhase::kIdle) {
    pool.EndSync();
    if (pool.decision.has_value() && pool.decision->commit) pool.decided_at = core.now;
  } else if (row.to != SyncPhase::kStaging) {
    AskDoors(core, id, pool, row.to);
  }
  core.changed.Pool(id);
  if (row.write == SyncWrite::kNothing) return;
  if (row.write == SyncWrite::kDecision)
    core.Save(DecisionKey(id.adapter, id.pool), *pool.decision);
  core.SaveSync(id, pool);
  core.SavePool(id, pool);
}

bool IsFromQueue(const SyncRecord& sync) {
  return !sync.overriding && sync.source.kind == fleet::PoolSource::Kind::kPublished;
}

namespace {

// Whether it had the version when it reported last, on the boot on which it takes part in the sync.
bool HadIt(const Core& core, const SyncRecord& sync, const SyncMember& part) {
  const Member& member = core.members.at(part.member);
  if (!member.observed.has_value() || member.observed->boot != part.boot) return false;
  return IsLoaded(member, core.NameIn(sync.version, member.observed->limits.kind));
}

// Whether it has the version, as a session that is open says.
bool HasIt(const Core& core, const SyncRecord& sync, const SyncMember& part) {
  return core.members.at(part.member).session.has_value() && HadIt(core, sync, part);
}

// The member's failure, once others of its kind have the version: until then its verdict is open,
// and another may try. Null when it has none, or has not answered this reign yet.
const fleet::ObservedResidency* FailureOf(const Core& core, const Member& member,
                                          const VersionInfo& version) {
  const fleet::ObservedResidency* residency = ResidencyOf(core, member, version);
  const bool counts = residency != nullptr && residency->state == fleet::ResidencyState::kFailed &&
                      member.observed->term == core.meta.term &&
                      VerdictOf(core, member.group, version.key).verdict == Verdict::kProven;
  return counts ? residency : nullptr;
}

// Why its engine cannot serve the version, by the policy as it is now; empty when it can.
std::string WhyUnfit(const Core& core, const PoolId& id, const Member& member,
                     const VersionInfo& version) {
  const fleet::AdapterPolicy& policy = *core.FindPolicy(id);
  return fleet::WhyNotServable(member.observed->limits, version.traits, policy);
}

// Why a member takes no further part; kNone while it does.
Drop WhyDropped(const Core& core, const PoolId& id, const SyncRecord& sync,
                const SyncMember& part) {
  const auto it = core.members.find(part.member);
  if (it == core.members.end()) return Drop::kLeft;
  if (it->second.record.dead) return Drop::kDead;
  const Member& member = it->second;
  if (!member.session.has_value())
    return StandingOf(core, member) == MemberStanding::kLost ? Drop::kLost : Drop::kNone;
  if (member.record.pool != id.pool) return Drop::kMoved;
  if (member.record.excluded) return Drop::kExcluded;
  if (member.observed->boot != part.boot) return Drop::kRestarted;
  if (member.observed->health != fleet::MemberHealth::kReady) return Drop::kNotReady;
  if (!WhyUnfit(core, id, member, sync.version).empty()) return Drop::kUnfit;
  if (HasIt(core, sync, part)) return Drop::kNone;
  if (IsBarred(core, member, sync.version.key)) return Drop::kBarred;
  return FailureOf(core, member, sync.version) != nullptr ? Drop::kFailed : Drop::kNone;
}

std::string WhyItDropped(const Core& core, const PoolId& id, const SyncRecord& sync,
                         const SyncMember& part) {
  if (part.dropped == Drop::kUnfit)
    return WhyUnfit(core, id, core.members.at(part.member), sync.version);
  if (part.dropped == Drop::kBarred) {
    return ExplainBarred(core,
                         VerdictOf(core, core.members.at(part.member).group, sync.version.key));
  }
  if (part.dropped != Drop::kFailed) return "";
  return WordsOf(*FailureOf(core, core.members.at(part.member), sync.version));
}

// Where a member stands that still takes part.
Pool::Standing StandingIn(const Core& core, const SyncRecord& sync, const SyncMember& part) {
  if (HasIt(core, sync, part)) return Pool::Standing::kLoaded;
  const bool is_away = !core.members.at(part.member).session.has_value();
  return is_away && HadIt(core, sync, part) ? Pool::Standing::kAway : Pool::Standing::kRemaining;
}

void Count(Core& core, const PoolId& id, Pool& pool, size_t at) {
  ++core.work.members;
  SyncRecord& sync = *pool.sync;
  SyncMember& part = sync.members[at];
  if (part.dropped == Drop::kNone) {
    part.dropped = WhyDropped(core, id, sync, part);
    if (part.dropped != Drop::kNone) {
      part.words = Beginning(WhyItDropped(core, id, sync, part));
      core.SaveQuietly(SyncKey(id.adapter, id.pool), sync);
      core.changed.Part(part.member, id.adapter);
    }
  }
  using Standing = Pool::Standing;
  Standing now = Standing::kDropped;
  if (part.dropped == Drop::kNone) now = StandingIn(core, sync, part);
  Pool::Tally& tally = pool.tally;
  const Standing before = std::exchange(tally.members[at], now);
  tally.remaining += (now != Standing::kDropped) - (before != Standing::kDropped);
  tally.away += (now == Standing::kAway) - (before == Standing::kAway);
  tally.loaded += (now == Standing::kLoaded) - (before == Standing::kLoaded);
}

void DropAndCount(Core& core, const PoolId& id, Pool& pool, const Visit& visit) {
  const SyncRecord& sync = *pool.sync;
  if (visit.whole || pool.tally.members.size() != sync.members.size()) {
    pool.tally = {std::vector(sync.members.size(), Pool::Standing::kDropped)};
    for (size_t i = 0; i < sync.members.size(); ++i) Count(core, id, pool, i);
    return;
  }
  for (const MemberId& member : visit.members) {
    const SyncMember* part = sync.Find(member);
    if (part != nullptr) Count(core, id, pool, static_cast<size_t>(part - sync.members.data()));
  }
}

// Whether a version was rolled back, or left behind by a newer run, where the pool took it from.
bool IsRolledBack(const Core& core, const PoolId& id, const Pool& pool, const VersionKey& key) {
  const fleet::PoolSource& source = pool.sync->source;
  if (source.kind != fleet::PoolSource::Kind::kPool) return false;
  const auto followed = core.pools.find({id.adapter, source.pool});
  if (followed == core.pools.end()) return false;
  const std::vector<Activation>& history = followed->second.record.history;
  // What is older than a full history may only have been forgotten.
  if (history.size() >= kHistoryLimit) {
    const VersionKey& oldest = history.front().version.key;
    if (key.run == oldest.run && key < oldest) return false;
  }
  return std::ranges::none_of(history, [&](const Activation& a) { return a.version.key == key; });
}

static_assert(kHistoryLimit == fleet::kWindowMax, "policies may ask for as many as are remembered");

void Commit(const Core& core, const PoolId& id, Pool& pool) {
  const SyncRecord& sync = *pool.sync;
  std::vector<Activation>& history = pool.record.history;
  if (const Activation* before = pool.committed()) {
    const VersionKey& key = before->version.key;
    if (sync.overriding || key.run != sync.version.key.run || IsRolledBack(core, id, pool, key))
      history.clear();
  }
  std::erase_if(history, [&](const Activation& a) { return a.version.key == sync.version.key; });
  history.push_back({sync.epoch, sync.version});
  if (sync.mode == fleet::SyncMode::kBarrier) pool.record.barrier = sync.epoch;
  pool.barriers_failed = 0;
  if (history.size() > kHistoryLimit) history.erase(history.begin());
  // It did not come through the queue: from here on all that is newer is meant for the pool, once it
  // takes what is published again.
  if (!sync.overriding && sync.source.kind != fleet::PoolSource::Kind::kPublished) {
    pool.record.considered = sync.version.key;
    pool.record.pending.clear();
  }
  // Versions of the queue that are older than this one will never be synced. It may be there itself:
  // the sync of a pin or of an alias takes nothing out of the queue, as it may be broken off.
  std::erase_if(pool.record.pending, [&](const VersionKey& key) {
    return key.run == sync.version.key.run && key <= sync.version.key;
  });
}

// The version waits again, unless something newer does already: also where policy has changed, which
// may be as it was again, and a pool considers each version once.
void AbortSync(const Core& core, const PoolId& id, Pool& pool) {
  const SyncRecord& sync = *pool.sync;
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  const bool never_skips = info != nullptr && info->policy.skip == fleet::SkipMode::kNever;
  if (IsFromQueue(sync) && (pool.record.pending.empty() || never_skips))
    pool.record.pending.insert(pool.record.pending.begin(), sync.version.key);
  // Doors that were held in vain serve for longer, each time, before they are asked to hold again.
  pool.barriers_failed = pool.barrier.has_value() ? pool.barriers_failed + 1 : 0;
  pool.retry_at = core.now + core.Backoff(pool.barriers_failed);
}

// What ends a sync whatever its members do.
std::optional<SyncEvent> WhatStops(const Core& core, const PoolId& id, const Pool& pool,
                                   const fleet::AdapterPolicy* policy) {
  if (policy == nullptr) return SyncEvent::kPolicyChanged;
  const SyncRecord& sync = *pool.sync;
  if (!sync.overriding && pool.record.override_to.has_value()) return SyncEvent::kOverridden;
  if (sync.overriding && pool.record.override_to != sync.version.key) return SyncEvent::kOverridden;
  if (!sync.overriding && sync.source != policy->pools.at(id.pool))
    return SyncEvent::kPolicyChanged;
  if (IsFromQueue(sync) && sync.version.key.run != core.adapters.at(id.adapter).current_run)
    return SyncEvent::kRunFenced;
  if (!sync.overriding && IsRolledBack(core, id, pool, sync.version.key)) {
    const Activation* now = core.pools.at({id.adapter, sync.source.pool}).committed();
    const bool is_older = now != nullptr && now->version.key.run > sync.version.key.run;
    return is_older ? SyncEvent::kRunFenced : SyncEvent::kOverridden;
  }
  const GroupVerdict* given_up = GivenUp(core, id, sync.version.key);
  if (given_up == nullptr) return std::nullopt;
  if (given_up->verdict == Verdict::kPoisoned) return SyncEvent::kPoisoned;
  return given_up->verdict == Verdict::kStalls ? SyncEvent::kStalls : SyncEvent::kRefused;
}

// Its engine was under a pause of Lorry's, which may last longer than a stage deadline, and could
// load nothing meanwhile.
bool WasPaused(const Pool& pool, const Member& member) {
  return member.observed->paused.has_value() || member.paused_until > pool.sync_began;
}

// Drops the members that are still without the version at the deadline. One whose group has proven
// it, and that could have loaded it, is EXCLUDED for that.
void DropTheSlow(Core& core, Pool& pool) {
  const VersionInfo& version = pool.sync->version;
  for (SyncMember& part : pool.sync->members) {
    if (part.dropped != Drop::kNone || HasIt(core, *pool.sync, part)) continue;
    part.dropped = Drop::kTooSlow;
    Member& member = core.members.at(part.member);
    if (!member.observed.has_value()) continue;
    if (WasPaused(pool, member)) {
      part.words = "its engine was paused for another adapter, and could load nothing meanwhile";
      continue;
    }
    if (VerdictOf(core, member.group, version.key).verdict != Verdict::kProven) continue;
    Exclude(core, member, core.NameOf(version, member.observed->limits.kind),
            std::string(ToString(part.dropped)));
  }
}

// What has become of a sync; none while it goes on.
std::optional<SyncEvent> WhatHappened(Core& core, const PoolId& id, Pool& pool,
                                      const fleet::AdapterPolicy* policy, const Visit& visit) {
  if (const std::optional<SyncEvent> stop = WhatStops(core, id, pool, policy)) return stop;
  DropAndCount(core, id, pool, visit);
  const Pool::Tally& tally = pool.tally;
  const uint32_t needed = policy->min_engines.Of(pool.sync->share_of);
  if (tally.remaining < needed) return SyncEvent::kTooFewLeft;
  if (pool.barrier.has_value()) {
    if (tally.loaded + tally.away < needed) return SyncEvent::kTooFewLeft;
    CountDoors(core, id, pool, visit);
    return WhatDoorsDid(core, pool, /*enough=*/tally.loaded >= needed, policy->HoldLimitMs());
  }
  const bool is_late = core.now - pool.sync_began >= policy->stage_deadline_ms;
  if (tally.loaded < tally.remaining && !is_late) {
    // An engine may have lost it while the barrier waited for somebody else.
    WaitFor(core, id, pool, Wait::kNothing, "");
    return std::nullopt;
  }
  if (tally.loaded < needed) return SyncEvent::kTooFewAtDeadline;
  if (pool.sync->mode == fleet::SyncMode::kBarrier) {
    std::string unreachable = WhoIsUnreachable(core, id, /*lost=*/false);
    const bool can_hold = unreachable.empty();
    WaitFor(core, id, pool, can_hold ? Wait::kNothing : Wait::kUnreachable, std::move(unreachable));
    if (can_hold) return SyncEvent::kEnoughForBarrier;
    return is_late ? std::optional(SyncEvent::kUnreachable) : std::nullopt;
  }
  return tally.loaded == tally.remaining ? SyncEvent::kAllHaveIt : SyncEvent::kEnoughAtDeadline;
}

void AdvanceRunning(Core& core, const PoolId& id, Pool& pool, const Visit& visit) {
  const fleet::AdapterPolicy* policy = core.FindPolicy(id);
  const std::optional<SyncEvent> event = WhatHappened(core, id, pool, policy, visit);
  if (!event.has_value()) return;
  const SyncTransition* row = Take(SyncTable(), core.taken.sync, PhaseOf(pool), *event);
  if (row == nullptr) return;
  if (row->ask == SyncAsk::kHold || row->ask == SyncAsk::kCommitWithoutTheSlow)
    DropTheSlow(core, pool);
  if (row->to == SyncPhase::kIdle) {
    const bool commits = row->ask != SyncAsk::kAbort;
    pool.decision = DecisionRecord{pool.sync->epoch, pool.sync->version.key, commits, row->why};
    commits ? Commit(core, id, pool) : AbortSync(core, id, pool);
  }
  Stand(core, id, pool, *row);
}

// The pools to look at, by what changed.
std::map<PoolId, Visit> WhatToVisit(Core& core) {
  std::map<PoolId, Visit> visits = VisitsOf(
      std::exchange(core.changed.syncs, {}), core.pools,
      [](const AdapterName& adapter) {
        return PoolId{adapter, PoolName()};
      },
      [](const PoolId& id) -> const AdapterName& { return id.adapter; });
  for (const PoolId& id : core.sync_due.TakeDue(core.now)) visits[id].whole = true;
  if (std::exchange(core.synced_at, core.changed.count()) != core.changed.count()) {
    for (const PoolId& id : core.without_slot) visits[id];
  }
  return visits;
}

std::optional<Tick> DueAt(const Core& core, const PoolId& id, const Pool& pool) {
  const fleet::AdapterPolicy* policy = core.FindPolicy(id);
  if (policy == nullptr) return std::nullopt;
  FirstAfter due(core.now);
  if (pool.sync.has_value()) due.At(pool.sync_began + policy->stage_deadline_ms);
  if (pool.barrier.has_value()) due.At(pool.barrier->since + policy->HoldLimitMs());
  due.At(pool.retry_at);
  if (pool.no_slot_since.has_value()) due.At(*pool.no_slot_since + policy->stage_deadline_ms);
  return due.first();
}

}  // namespace

void AdvanceSyncs(Core& core) {
  if (core.footing == Footing::kUnread) return;
  if (core.footing != Footing::kSettled) return SayWhatIsLost(core);
  for (const auto& [id, visit] : WhatToVisit(core)) {
    const auto it = core.pools.find(id);
    if (it == core.pools.end()) continue;
    Pool& pool = it->second;
    if (pool.sync.has_value()) AdvanceRunning(core, id, pool, visit);
    if (!pool.sync.has_value()) AdvanceWaiting(core, id, pool);
    core.sync_due.Set(id, DueAt(core, id, pool));
    if (pool.no_slot_since.has_value()) {
      core.without_slot.insert(id);
    } else {
      core.without_slot.erase(id);
    }
  }
}

}  // namespace lorry::sync