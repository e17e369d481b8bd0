#include "services/sync_orchestrator/machine/waiting.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/a_few.h"
#include "lib/base/counted.h"
#include "lib/base/strings.h"
#include "lib/fleet/quiesce.h"
#include "services/sync_orchestrator/machine/barrier.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/slots.h"
#include "services/sync_orchestrator/machine/sync.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {

void WaitFor(Core& core, const PoolId& id, Pool& pool, Wait wait, std::string detail) {
  if (pool.wait == wait && pool.detail == detail) return;
  pool.wait = wait;
  pool.detail = std::move(detail);
  core.changed.Wait(id);
}

namespace {

Wait WaitOf(Verdict verdict) {
  if (verdict == Verdict::kPoisoned) return Wait::kPoisoned;
  return verdict == Verdict::kStalls ? Wait::kStalls : Wait::kRefused;
}

// Why a member cannot be staged on; empty when it can.
std::string WhyUnfit(const Core& core, const Member& member, const VersionInfo& version,
                     const fleet::AdapterPolicy& policy) {
  const MemberStanding standing = StandingOf(core, member);
  if (standing == MemberStanding::kReady) {
    const std::string unservable =
        fleet::WhyNotServable(member.observed->limits, version.traits, policy);
    if (!unservable.empty() || !IsBarred(core, member, version.key)) return unservable;
    return ExplainBarred(core, VerdictOf(core, member.group, version.key));
  }
  const std::string reason = StandingReason(core, member);
  return absl::StrCat(ToAbsl(ToString(standing)), reason.empty() ? "" : ", ", reason);
}

// For people: with skip NEVER no newer version may pass one that engines fail by themselves, so
// that more and more may wait behind it.
std::string WhoWaitsBehind(const fleet::AdapterPolicy& policy, const Pool& pool) {
  if (policy.skip != fleet::SkipMode::kNever || pool.record.pending.size() < 2) return "";
  return absl::StrCat("; ", pool.record.pending.size() - 1,
                      " newer wait behind it, as skip=never lets none pass: mend what keeps the "
                      "engines from it, or set skip=allowed, or pin another version");
}

struct Candidates {
  std::vector<const Member*> members;  // that the version can be staged on
  uint32_t share_of = 0;               // what a share of `min_engines` is a share of
  std::string unfit;                   // why others cannot, for people
};

// For people: a few members, as the end of a longer text.
std::string Beside(const std::vector<std::string>& members) {
  return members.empty() ? "" : absl::StrCat("; ", AFew(members, "; "));
}

// For people: the members of the pool that are likely to come (back).
std::string WhoIsExpected(const Core& core, const PoolId& id) {
  std::vector<std::string> names;
  for (const MemberId& expected : core.expected) {
    const Member& member = core.members.at(expected);
    if (member.record.pool == id.pool)
      names.push_back(absl::StrCat(expected.value, ": JOINING, ", StandingReason(core, member)));
  }
  return Beside(names);
}

Candidates CandidatesOf(const Core& core, const PoolId& id, const VersionInfo& version,
                        const fleet::AdapterPolicy& policy) {
  Candidates out;
  std::vector<std::string> unfit;
  for (const auto& [member_id, member] : core.members) {
    ++core.work.members;
    if (member.record.pool != id.pool || member.record.dead) continue;
    if (IsCounted(core, member, policy)) ++out.share_of;
    const std::string why = WhyUnfit(core, member, version, policy);
    if (why.empty()) {
      out.members.push_back(&member);
    } else {
      unfit.push_back(absl::StrCat(member_id.value, ": ", why));
    }
  }
  const bool nobody = out.members.empty() && unfit.empty();  // its name may be misspelt
  out.unfit = nobody ? "; no engine is in the pool" : Beside(unfit);
  return out;
}

void Start(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy& policy,
           const Candidate& next, const Candidates& candidates,
           const std::set<MemberId>& without_slot) {
  const SyncTransition* row =
      Take(SyncTable(), core.taken.sync, PhaseOf(pool), SyncEvent::kMayBegin);
  if (row == nullptr) return;
  pool.record.epoch = Epoch(pool.record.epoch.value + 1);
  SyncRecord sync;
  sync.epoch = pool.record.epoch;
  sync.version = next.version;
  sync.mode = policy.mode;
  sync.overriding = next.overriding;
  sync.share_of = candidates.share_of;
  sync.source = policy.pools.at(id.pool);
  if (IsFromQueue(sync)) std::erase(pool.record.pending, next.version.key);
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

// For people, of a pool that follows an alias or another pool: why there is nothing that it could
// take from there. Empty where there is.
std::string WhyNothingToFollow(const Core& core, const PoolId& id,
                               const fleet::PoolSource& source) {
  if (source.kind == fleet::PoolSource::Kind::kAlias) {
    const auto alias = core.aliases.find({id.adapter, source.alias});
    if (alias != core.aliases.end() && core.FindVersion(alias->second) != nullptr) return "";
    return absl::StrCat("the pool follows alias ", source.alias.value,
                        ", which names no stored version: set it (`lorry alias ", id.adapter.value,
                        " ", source.alias.value, " VERSION`)");
  }
  const auto followed = core.pools.find({id.adapter, source.pool});
  if (followed != core.pools.end() && followed->second.committed() != nullptr) return "";
  return absl::StrCat("the pool follows pool ", source.pool.value,
                      ", which has decided nothing yet; see what that one waits for");
}

// Nothing is to be synced: says so where the newest version is not the one that is served, or where
// none is, as the pool is pinned to one that is gone, or follows what names none.
void SayWhyIdle(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy* policy) {
  const VersionInfo* newest = NewestOf(core, id.adapter);
  if (newest == nullptr || policy == nullptr) return WaitFor(core, id, pool, Wait::kNothing);
  const bool is_pinned = pool.record.override_to.has_value();
  const fleet::PoolSource& source = policy->pools.at(id.pool);
  if (source.kind != fleet::PoolSource::Kind::kPublished) {
    std::string why = is_pinned ? "" : WhyNothingToFollow(core, id, source);
    const Wait wait = why.empty() ? Wait::kNothing : Wait::kNextVersion;
    return WaitFor(core, id, pool, wait, std::move(why));
  }
  const Activation* committed = pool.committed();
  const bool is_behind = committed != nullptr ? newest->key != committed->version.key : is_pinned;
  if (!is_behind) return WaitFor(core, id, pool, Wait::kNothing);
  if (is_pinned) {
    return WaitFor(core, id, pool, Wait::kOverridden,
                   absl::StrCat("an operator pins the pool to ", ToString(*pool.record.override_to),
                                "; newer versions wait"));
  }
  if (const GroupVerdict* given_up = GivenUp(core, id, newest->key))
    return WaitFor(core, id, pool, WaitOf(given_up->verdict), Explain(*given_up));
  WaitFor(core, id, pool, Wait::kNextVersion,
          absl::StrCat(ToString(newest->key),
                       " was passed over, by a rollback or a full queue; publish a newer version, "
                       "or pin this one"));
}

// Whether some member of the pool that has reported could serve it, by its limits and verdicts.
bool SomebodyCan(const Core& core, const PoolId& id, const VersionInfo& version,
                 const fleet::AdapterPolicy& policy) {
  bool anybody = false;
  for (auto it = core.places.lower_bound({id.pool, EngineGroup()});
       it != core.places.end() && it->first.first == id.pool; ++it) {
    anybody = true;
    const Member& one = core.members.at(*it->second.begin());
    if (fleet::WhyNotServable(one.observed->limits, version.traits, policy).empty() &&
        !IsBar(VerdictOf(core, it->first.second, version.key))) {
      return true;
    }
  }
  return !anybody;
}

// The first waiting version that can be served, so that one that cannot does not keep others
// waiting. Where none can, the last one, which then says why.
const VersionKey* FirstInLine(const Core& core, const PoolId& id, const Pool& pool,
                              const fleet::AdapterPolicy& policy) {
  for (const VersionKey& key : pool.record.pending) {
    const VersionInfo* version = core.FindVersion(key);
    if (version != nullptr && GivenUp(core, id, key) == nullptr &&
        SomebodyCan(core, id, *version, policy))
      return &key;
  }
  return pool.record.pending.empty() ? nullptr : &pool.record.pending.back();
}

}  // namespace

std::string WhyNoneFits(const Core& core, const PoolId& id, const VersionInfo& version) {
  const fleet::AdapterPolicy* policy = core.FindPolicy(id);
  if (policy == nullptr || !IsGathered(core)) return "";
  std::vector<std::string> unfit;
  bool by_limits = false;
  for (auto it = core.places.lower_bound({id.pool, EngineGroup()});
       it != core.places.end() && it->first.first == id.pool; ++it) {
    for (const MemberId& member_id : it->second) {
      const Member& member = core.members.at(member_id);
      // Of those without a session, below, where it is expected back.
      if (!member.session.has_value() || member.record.dead) continue;
      const MemberStanding standing = StandingOf(core, member);
      std::string why;
      if (member.record.excluded) {  // until an operator's word, for which nobody waits
        why = absl::StrCat("EXCLUDED, ", StandingReason(core, member));
      } else if (member.observed.has_value() &&
                 (standing == MemberStanding::kReady || standing == MemberStanding::kExcluded)) {
        why = fleet::WhyNotServable(member.observed->limits, version.traits, *policy);
        by_limits = true;
      }
      // An engine that is away may be started again with other limits.
      if (why.empty()) return "";
      unfit.push_back(absl::StrCat(member_id.value, ": ", why));
    }
  }
  if (!by_limits || !WhoIsExpected(core, id).empty()) return "";
  return AFew(unfit, "; ");
}

void SayWhatIsLost(Core& core) {
  const Wait wait = core.footing == Footing::kRecordsLost ? Wait::kRecordsLost : Wait::kStoreLost;
  for (const auto& [adapter, info] : core.adapters) {
    for (const auto& [pool, source] : info.policy.pools) core.PoolOf({adapter, pool});
  }
  for (auto& [id, pool] : core.pools)
    WaitFor(core, id, pool, wait, std::string(Explain(core.footing)));
}

void AdvanceWaiting(Core& core, const PoolId& id, Pool& pool) {
  const fleet::AdapterPolicy* policy = core.FindPolicy(id);
  const std::optional<Candidate> next =
      policy != nullptr ? CandidateOf(core, id, pool, *policy) : std::nullopt;
  const GroupVerdict* given_up = next.has_value() ? GivenUp(core, id, next->version.key) : nullptr;
  // The next version for which there is no slot waits anew.
  if (!next.has_value() || given_up != nullptr) pool.no_slot_since.reset();
  if (!next.has_value()) return SayWhyIdle(core, id, pool, policy);
  if (given_up != nullptr)
    return WaitFor(core, id, pool, WaitOf(given_up->verdict), Explain(*given_up));
  if (!core.held.contains(next->version.key)) return WaitFor(core, id, pool, Wait::kHoldPending);
  if (!IsGathered(core)) return WaitFor(core, id, pool, Wait::kAttaching, WhoIsExpected(core, id));
  const Candidates candidates = CandidatesOf(core, id, next->version, *policy);
  // Only the version whose sync was broken off waits; another in its place begins at once.
  if (core.now < pool.retry_at && pool.decision->version == next->version.key) {
    return WaitFor(core, id, pool, Wait::kRetryLater,
                   absl::StrCat(ToAbsl(ToString(pool.decision->why)), candidates.unfit,
                                WhoWaitsBehind(*policy, pool)));
  }
  if (policy->mode == fleet::SyncMode::kBarrier) {
    const std::string unreachable = WhoIsUnreachable(core, id, /*lost=*/true);
    if (!unreachable.empty()) return WaitFor(core, id, pool, Wait::kUnreachable, unreachable);
  }
  const uint32_t needed = policy->min_engines.Of(candidates.share_of);
  if (candidates.members.size() < needed) {
    return WaitFor(
        core, id, pool, Wait::kTooFewEngines,
        absl::StrCat(Counted(candidates.members.size(), "engine is", "engines are"),
                     " ready for it, ", Counted(needed, "is", "are"), " needed", candidates.unfit));
  }
  RefreshDocuments(core);  // by which slots are counted
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

std::optional<Candidate> CandidateOf(const Core& core, const PoolId& id, const Pool& pool,
                                     const fleet::AdapterPolicy& policy) {
  const fleet::PoolSource& source = policy.pools.at(id.pool);
  const VersionKey* key = nullptr;
  if (pool.record.override_to.has_value()) {
    key = &*pool.record.override_to;
  } else if (source.kind == fleet::PoolSource::Kind::kPool) {
    const auto followed = core.pools.find({id.adapter, source.pool});
    if (followed != core.pools.end() && followed->second.committed() != nullptr) {
      key = &followed->second.committed()->version.key;
    }
  } else if (source.kind == fleet::PoolSource::Kind::kAlias) {
    const auto alias = core.aliases.find({id.adapter, source.alias});
    if (alias != core.aliases.end()) key = &alias->second;
  } else {
    key = FirstInLine(core, id, pool, policy);
  }
  if (key == nullptr) return std::nullopt;
  if (pool.committed() != nullptr && pool.committed()->version.key == *key) return std::nullopt;
  const VersionInfo* version = core.FindVersion(*key);
  if (version == nullptr) return std::nullopt;
  return Candidate{*version, pool.record.override_to.has_value()};
}

}  // namespace lorry::sync
