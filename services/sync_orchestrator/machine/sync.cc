#include "services/sync_orchestrator/machine/sync.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/first_after.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/slots.h"
#include "services/sync_orchestrator/machine/tables.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

const fleet::AdapterPolicy* PolicyOf(const Core& core, const PoolId& id) {
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  return info != nullptr && info->policy.pools.contains(id.pool) ? &info->policy : nullptr;
}

// --- while it runs

// Evidence counts only from a live session and from the boot that the sync froze.
bool HasIt(const Core& core, const SyncRecord& sync, const SyncMember& part) {
  const Member& member = core.members.at(part.member);
  if (!member.session.has_value() || member.observed->boot != part.boot) return false;
  return IsLoaded(member, core.NameIn(sync.version, member.observed->limits.kind));
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

// Why a member takes no further part; kNone while it does.
Drop WhyDropped(const Core& core, const PoolId& id, const SyncRecord& sync,
                const SyncMember& part) {
  const auto it = core.members.find(part.member);
  if (it == core.members.end() || it->second.record.dead) return Drop::kDead;
  const Member& member = it->second;
  if (!member.session.has_value())
    return StandingOf(core, member) == MemberStanding::kLost ? Drop::kLost : Drop::kNone;
  if (member.record.pool != id.pool) return Drop::kMoved;
  if (member.record.excluded) return Drop::kExcluded;
  if (member.observed->boot != part.boot) return Drop::kRestarted;
  if (member.observed->health != fleet::MemberHealth::kReady) return Drop::kNotReady;
  if (HasIt(core, sync, part)) return Drop::kNone;
  if (IsBar(VerdictOf(core, member.group, sync.version.key))) return Drop::kBarred;
  return FailureOf(core, member, sync.version) != nullptr ? Drop::kFailed : Drop::kNone;
}

std::string WhyItDropped(const Core& core, const SyncRecord& sync, const SyncMember& part) {
  if (part.dropped == Drop::kBarred) {
    return Explain(VerdictOf(core, core.members.at(part.member).group, sync.version.key));
  }
  if (part.dropped != Drop::kFailed) return "";
  return WordsOf(*FailureOf(core, core.members.at(part.member), sync.version));
}

// What of a pool is looked at: all of it, or in a running sync these members alone.
struct Visit {
  bool whole = false;
  std::set<MemberId> members;
};

void Count(Core& core, const PoolId& id, Pool& pool, size_t at) {
  ++core.work.members;
  SyncRecord& sync = *pool.sync;
  SyncMember& part = sync.members[at];
  if (part.dropped == Drop::kNone) {
    part.dropped = WhyDropped(core, id, sync, part);
    if (part.dropped != Drop::kNone) {
      part.words = WhyItDropped(core, sync, part);
      core.SaveQuietly(SyncKey(id.adapter, id.pool), sync);
      core.changed.Part(part.member, id.adapter);
    }
  }
  using Standing = Pool::Standing;
  Standing now = Standing::kDropped;
  if (part.dropped == Drop::kNone)
    now = HasIt(core, sync, part) ? Standing::kLoaded : Standing::kRemaining;
  Pool::Tally& tally = pool.tally;
  const Standing before = std::exchange(tally.members[at], now);
  tally.remaining += (now != Standing::kDropped) - (before != Standing::kDropped);
  tally.loaded += (now == Standing::kLoaded) - (before == Standing::kLoaded);
}

void DropAndCount(Core& core, const PoolId& id, Pool& pool, const Visit& visit) {
  const SyncRecord& sync = *pool.sync;
  if (visit.whole || pool.tally.members.size() != sync.members.size()) {
    pool.tally = {std::vector(sync.members.size(), Pool::Standing::kDropped), 0, 0};
    for (size_t i = 0; i < sync.members.size(); ++i) Count(core, id, pool, i);
    return;
  }
  for (const MemberId& member : visit.members) {
    const SyncMember* part = sync.Find(member);
    if (part != nullptr) Count(core, id, pool, static_cast<size_t>(part - sync.members.data()));
  }
}

// The pool's sync stands where the row says, and that is written down.
void Stand(Core& core, const PoolId& id, Pool& pool, const SyncTransition& row) {
  pool.no_slot_since.reset();
  if (row.to == SyncPhase::kIdle) {
    pool.sync.reset();
    pool.tally = {};
    pool.decided_at = core.now;
  }
  if (row.write == SyncWrite::kDecision)
    core.Save(DecisionKey(id.adapter, id.pool), *pool.decision);
  core.SaveSync(id, pool);
  core.SavePool(id, pool);
}

void Commit(Pool& pool) {
  const SyncRecord& sync = *pool.sync;
  std::vector<Activation>& history = pool.record.history;
  const bool new_lineage = sync.overriding || (!history.empty() && history.back().version.key.run !=
                                                                       sync.version.key.run);
  if (new_lineage) history.clear();
  std::erase_if(history, [&](const Activation& a) { return a.version.key == sync.version.key; });
  history.push_back({sync.epoch, sync.version});
  if (history.size() > kHistoryLimit) history.erase(history.begin());
  // What was given up and is older now is nobody's next version any more.
  std::erase_if(pool.record.pending, [&](const VersionKey& key) {
    return key.run == sync.version.key.run && key < sync.version.key;
  });
}

// The version waits again, unless something newer does already.
void AbortSync(const Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy* policy) {
  const VersionKey key = pool.sync->version.key;
  const bool from_queue = !pool.sync->overriding && policy != nullptr &&
                          policy->pools.at(id.pool).kind == fleet::PoolSource::Kind::kPublished;
  const bool goes_back =
      from_queue && (pool.record.pending.empty() || policy->skip == fleet::SkipRule::kNever);
  if (goes_back) pool.record.pending.insert(pool.record.pending.begin(), key);
  pool.retry_at = core.now + core.config.retry_min_ms;
}

// What ends a sync whatever its members do.
std::optional<SyncEvent> WhatStops(const Core& core, const PoolId& id, const Pool& pool,
                                   const fleet::AdapterPolicy* policy) {
  if (policy == nullptr) return SyncEvent::kPolicyChanged;
  const SyncRecord& sync = *pool.sync;
  if (!sync.overriding && pool.record.override_to.has_value()) return SyncEvent::kOverridden;
  if (sync.overriding && pool.record.override_to != sync.version.key) return SyncEvent::kOverridden;
  const fleet::PoolSource& source = policy->pools.at(id.pool);
  const bool published = source.kind == fleet::PoolSource::Kind::kPublished;
  if (!sync.overriding && published &&
      sync.version.key.run != core.adapters.at(id.adapter).current_run) {
    return SyncEvent::kRunFenced;
  }
  const GroupVerdict* given_up = GivenUp(core, id, sync.version.key);
  if (given_up == nullptr) return std::nullopt;
  if (given_up->verdict == Verdict::kPoisoned) return SyncEvent::kPoisoned;
  return given_up->verdict == Verdict::kStalls ? SyncEvent::kStalls : SyncEvent::kRefused;
}

// Those that are still without it at the deadline. Whoever has not what others of its kind have is
// EXCLUDED for it.
void DropTheSlow(Core& core, Pool& pool) {
  const VersionInfo& version = pool.sync->version;
  for (SyncMember& part : pool.sync->members) {
    if (part.dropped != Drop::kNone || HasIt(core, *pool.sync, part)) continue;
    part.dropped = Drop::kTooSlow;
    Member& member = core.members.at(part.member);
    if (!member.observed.has_value() ||
        VerdictOf(core, member.group, version.key).verdict != Verdict::kProven)
      continue;
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
  if (tally.loaded == tally.remaining) return SyncEvent::kAllHaveIt;
  if (core.now - pool.sync_began < policy->stage_deadline_ms) return std::nullopt;
  return tally.loaded < needed ? SyncEvent::kTooFewAtDeadline : SyncEvent::kEnoughAtDeadline;
}

void AdvanceRunning(Core& core, const PoolId& id, Pool& pool, const Visit& visit) {
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  const std::optional<SyncEvent> event = WhatHappened(core, id, pool, policy, visit);
  if (!event.has_value()) return;
  const SyncTransition* row = Take(SyncTable(), core.taken.sync, PhaseOf(pool), *event);
  if (row == nullptr) return;
  const bool commits = row->ask != SyncAsk::kAbort;
  pool.decision = DecisionRecord{pool.sync->epoch, pool.sync->version.key, commits, row->why};
  if (row->ask == SyncAsk::kCommitWithoutTheSlow) DropTheSlow(core, pool);
  commits ? Commit(pool) : AbortSync(core, id, pool, policy);
  Stand(core, id, pool, *row);
}

// --- while it waits

void WaitFor(Core& core, const PoolId& id, Pool& pool, Wait wait, std::string detail = "") {
  if (pool.wait == wait && pool.detail == detail) return;
  pool.wait = wait;
  pool.detail = std::move(detail);
  core.changed.Wait(id);
}

Wait WaitOf(Verdict verdict) {
  if (verdict == Verdict::kPoisoned) return Wait::kPoisoned;
  return verdict == Verdict::kStalls ? Wait::kStalls : Wait::kRefused;
}

// Why a member cannot be staged on; empty when it can.
std::string WhyUnfit(const Core& core, const Member& member, const VersionInfo& version) {
  const MemberStanding standing = StandingOf(core, member);
  if (standing == MemberStanding::kReady) {
    const std::string unservable = fleet::WhyNotServable(member.observed->limits, version.traits);
    return unservable.empty() ? Explain(VerdictOf(core, member.group, version.key)) : unservable;
  }
  const std::string reason = StandingReason(core, member);
  return absl::StrCat(ToAbsl(ToString(standing)), reason.empty() ? "" : ", ", reason);
}

struct Candidates {
  std::vector<Member*> members;  // that the version can be staged on
  uint32_t share_of = 0;         // what a share of `min_engines` is a share of
  std::string unfit;             // why others cannot, for people
};

constexpr size_t kNamed = 4;  // members of a large fleet: enough to see what is wrong

// The first few of the pool that are likely to come (back).
std::string WhoIsExpected(const Core& core, const PoolId& id) {
  std::string names;
  size_t found = 0;
  for (const MemberId& expected : core.expected) {
    const Member& member = core.members.at(expected);
    if (member.record.pool != id.pool) continue;
    if (++found > kNamed) break;
    absl::StrAppend(&names, "; ", expected.value, ": JOINING, ", StandingReason(core, member));
  }
  return names;
}

Candidates CandidatesOf(Core& core, const PoolId& id, const VersionInfo& version) {
  Candidates out;
  size_t others = 0;
  for (auto& [member_id, member] : core.members) {
    ++core.work.members;
    if (member.record.pool != id.pool || member.record.dead) continue;
    if (IsCounted(core, member)) ++out.share_of;
    const std::string why = WhyUnfit(core, member, version);
    if (why.empty()) {
      out.members.push_back(&member);
    } else if (++others <= kNamed) {
      absl::StrAppend(&out.unfit, "; ", member_id.value, ": ", why);
    }
  }
  if (others > kNamed) absl::StrAppend(&out.unfit, "; and ", others - kNamed, " more");
  return out;
}

void Start(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy& policy,
           const Candidate& next, const Candidates& candidates,
           const std::set<MemberId>& without_slot) {
  const SyncTransition* row =
      Take(SyncTable(), core.taken.sync, PhaseOf(pool), SyncEvent::kMayBegin);
  if (row == nullptr) return;
  pool.record.epoch = Epoch(pool.record.epoch.value + 1);
  std::erase(pool.record.pending, next.version.key);
  SyncRecord sync;
  sync.epoch = pool.record.epoch;
  sync.version = next.version;
  sync.mode = policy.mode;
  sync.overriding = next.overriding;
  sync.share_of = candidates.share_of;
  for (const Member* member : candidates.members) {
    const bool fits = !without_slot.contains(member->id);
    sync.members.push_back(
        {member->id, member->observed->boot, fits ? Drop::kNone : Drop::kNoSlot});
  }
  pool.sync = std::move(sync);
  pool.tally = {};
  pool.sync_began = core.now;
  WaitFor(core, id, pool, Wait::kNothing);
  Stand(core, id, pool, *row);
}

// Nothing is to be synced: says so where the newest version is not the one that is served.
void SayWhyIdle(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy* policy) {
  const VersionInfo* newest = NewestOf(core, id.adapter);
  const Activation* committed = pool.committed();
  const bool differs = policy != nullptr && newest != nullptr && committed != nullptr &&
                       newest->key != committed->version.key &&
                       policy->pools.at(id.pool).kind == fleet::PoolSource::Kind::kPublished;
  if (!differs) return WaitFor(core, id, pool, Wait::kNothing);
  if (pool.record.override_to.has_value()) {
    return WaitFor(core, id, pool, Wait::kOverridden,
                   absl::StrCat("an operator pins the pool to ", ToString(*pool.record.override_to),
                                "; newer versions wait"));
  }
  if (const GroupVerdict* given_up = GivenUp(core, id, newest->key))
    return WaitFor(core, id, pool, WaitOf(given_up->verdict), Explain(*given_up));
  WaitFor(core, id, pool, Wait::kNextVersion,
          absl::StrCat(ToString(newest->key),
                       " was passed over, by a rollback or a full queue; the next version that is "
                       "published is synced, or pin this one"));
}

// Every pool says why nothing is decided in it.
void SayWhatIsLost(Core& core) {
  const Wait wait = core.footing == Footing::kRecordsLost ? Wait::kRecordsLost : Wait::kStoreLost;
  for (const auto& [adapter, info] : core.adapters) {
    for (const auto& [pool, source] : info.policy.pools) core.pools[{adapter, pool}];
  }
  for (auto& [id, pool] : core.pools)
    WaitFor(core, id, pool, wait, std::string(Explain(core.footing)));
}

void AdvanceWaiting(Core& core, const PoolId& id, Pool& pool) {
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  const std::optional<Candidate> next = policy != nullptr ? CandidateOf(core, id) : std::nullopt;
  if (!next.has_value()) return SayWhyIdle(core, id, pool, policy);
  if (const GroupVerdict* given_up = GivenUp(core, id, next->version.key))
    return WaitFor(core, id, pool, WaitOf(given_up->verdict), Explain(*given_up));
  // The one place where the mode is refused: HOLDING and LOCKING exist in phases, rows and Desired.
  if (policy->mode == fleet::SyncMode::kBarrier) {
    return WaitFor(core, id, pool, Wait::kUnimplemented,
                   "mode BARRIER is not built yet; set the policy's mode to ROLLING");
  }
  if (!core.held.contains(next->version.key)) return WaitFor(core, id, pool, Wait::kHoldPending);
  if (!IsGathered(core)) return WaitFor(core, id, pool, Wait::kAttaching, WhoIsExpected(core, id));
  const Candidates candidates = CandidatesOf(core, id, next->version);
  // What operators, policies and new runs put in its place does not wait.
  if (core.now < pool.retry_at && pool.decision->version == next->version.key) {
    return WaitFor(core, id, pool, Wait::kRetryLater,
                   absl::StrCat(ToAbsl(ToString(pool.decision->why)), candidates.unfit));
  }
  const uint32_t needed = policy->min_engines.Of(candidates.share_of);
  if (candidates.members.size() < needed) {
    return WaitFor(core, id, pool, Wait::kTooFewEngines,
                   absl::StrCat(candidates.members.size(), " engines are ready, ", needed,
                                " are needed", candidates.unfit));
  }
  const SlotVerdict verdict = CheckSlots(core, candidates.members, next->version);
  if (!verdict.without_slot.empty()) {
    if (!pool.no_slot_since.has_value()) pool.no_slot_since = core.now;
    // One full engine delays the others no longer than a slow one would.
    const bool waited = core.now - *pool.no_slot_since >= policy->stage_deadline_ms;
    const size_t fitting = candidates.members.size() - verdict.without_slot.size();
    if (!waited || fitting < needed) return WaitFor(core, id, pool, Wait::kNoSlot, verdict.detail);
  }
  Start(core, id, pool, *policy, *next, candidates, verdict.without_slot);
}

// Whether some member of the pool that has reported could serve it, by its limits and verdicts.
bool SomebodyCan(const Core& core, const PoolId& id, const VersionInfo& version) {
  bool anybody = false;
  for (auto it = core.places.lower_bound({id.pool, EngineGroup()});
       it != core.places.end() && it->first.first == id.pool; ++it) {
    anybody = true;
    const Member& one = core.members.at(*it->second.begin());
    if (fleet::WhyNotServable(one.observed->limits, version.traits).empty() &&
        !IsBar(VerdictOf(core, it->first.second, version.key))) {
      return true;
    }
  }
  return !anybody;
}

// The first that waits and can be served: one that cannot does not stand in the way of those behind
// it. The last where none can, so that it says why.
std::optional<VersionKey> FirstInLine(const Core& core, const PoolId& id, const Pool& pool) {
  for (const VersionKey& key : pool.record.pending) {
    const VersionInfo* version = core.FindVersion(key);
    if (version != nullptr && GivenUp(core, id, key) == nullptr && SomebodyCan(core, id, *version))
      return key;
  }
  if (pool.record.pending.empty()) return std::nullopt;
  return pool.record.pending.back();
}

}  // namespace

std::optional<Candidate> CandidateOf(const Core& core, const PoolId& id) {
  const auto it = core.pools.find(id);
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  if (it == core.pools.end() || policy == nullptr) return std::nullopt;
  const Pool& pool = it->second;
  const fleet::PoolSource& source = policy->pools.at(id.pool);
  std::optional<VersionKey> key;
  if (pool.record.override_to.has_value()) {
    key = pool.record.override_to;
  } else if (source.kind == fleet::PoolSource::Kind::kPool) {
    const auto followed = core.pools.find({id.adapter, source.pool});
    if (followed != core.pools.end() && followed->second.committed() != nullptr) {
      key = followed->second.committed()->version.key;
    }
  } else if (source.kind == fleet::PoolSource::Kind::kAlias) {
    const auto alias = core.aliases.find({id.adapter, source.alias});
    if (alias != core.aliases.end()) key = alias->second;
  } else {
    key = FirstInLine(core, id, pool);
  }
  if (!key.has_value()) return std::nullopt;
  if (pool.committed() != nullptr && pool.committed()->version.key == *key) return std::nullopt;
  const VersionInfo* version = core.FindVersion(*key);
  if (version == nullptr) return std::nullopt;
  return Candidate{*version, pool.record.override_to.has_value()};
}

namespace {

// The pools to look at, by what changed.
std::map<PoolId, Visit> WhatToVisit(Core& core) {
  const Changes::Scope changed = std::exchange(core.changed.syncs, {});
  std::map<PoolId, Visit> visits;
  if (changed.all || !changed.members.empty()) {
    for (const auto& [id, pool] : core.pools) visits[id] = {changed.all, changed.members};
  }
  const auto each = [&](const AdapterName& adapter, const auto& visit) {
    for (auto it = core.pools.lower_bound({adapter, PoolName()});
         it != core.pools.end() && it->first.adapter == adapter; ++it) {
      visit(visits[it->first]);
    }
  };
  for (const AdapterName& adapter : changed.adapters)
    each(adapter, [](Visit& visit) { visit.whole = true; });
  for (const auto& [adapter, members] : changed.parts) {
    each(adapter, [&](Visit& visit) { visit.members.insert(members.begin(), members.end()); });
  }
  for (const PoolId& id : core.sync_due.TakeDue(core.now)) visits[id].whole = true;
  if (std::exchange(core.synced_at, core.changed.count()) != core.changed.count()) {
    for (const PoolId& id : core.without_slot) visits[id];
  }
  return visits;
}

std::optional<Tick> DueAt(const Core& core, const PoolId& id, const Pool& pool) {
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  if (policy == nullptr) return std::nullopt;
  FirstAfter due(core.now);
  if (pool.sync.has_value()) due.At(pool.sync_began + policy->stage_deadline_ms);
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
