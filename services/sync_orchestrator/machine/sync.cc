#include "services/sync_orchestrator/machine/sync.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/canary.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/slots.h"

namespace lorry::sync {
namespace {

const fleet::AdapterPolicy* PolicyOf(const Core& core, const PoolId& id) {
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  return info != nullptr && info->policy.pools.contains(id.pool) ? &info->policy : nullptr;
}

// `detail` is for people, in the engine's words.
void Exclude(Core& core, Member& member, const std::string& why, std::string_view detail = "") {
  constexpr size_t kDetailBytes = 400;  // of a traceback, what begins it
  member.excluded_reason = why;
  if (!detail.empty())
    absl::StrAppend(&member.excluded_reason, ": ", ToAbsl(detail.substr(0, kDetailBytes)));
  ++member.failures;
  member.excluded_until = core.now + core.Backoff(member.failures);
}

// --- while it runs

// Why a member takes no further part; empty while it does. A failure with a reason also excludes it
// for a while.
std::string WhyDropped(Core& core, const SyncRecord& sync, const SyncMember& part) {
  const auto it = core.members.find(part.member);
  if (it == core.members.end() || it->second.record.dead) return "MEMBER_DEAD";
  Member& member = it->second;
  if (!member.session.has_value()) {
    return core.now - member.lost_at >= core.config.lost_after_ms ? "MEMBER_LOST" : "";
  }
  if (member.record.excluded) return "MEMBER_EXCLUDED";
  if (member.observed->boot != part.boot) return "ENGINE_RESTARTED";
  if (member.observed->health != fleet::MemberHealth::kReady) return "MEMBER_NOT_READY";
  const EngineName& name = core.NameOf(sync.version, member.observed->limits.kind);
  const fleet::ObservedResidency* residency = ResidencyOf(member, name);
  const bool answers_this_reign = member.observed->term == core.meta.term;
  if (answers_this_reign && residency != nullptr &&
      residency->state == fleet::ResidencyState::kFailed) {
    const std::string why = residency->reason.empty() ? "STAGING_FAILED" : residency->reason;
    Exclude(core, member, why, residency->detail);
    return why;
  }
  return "";
}

// Evidence counts only from a live session and from the boot that the sync froze.
bool HasIt(Core& core, const SyncRecord& sync, const SyncMember& part) {
  const Member& member = core.members.at(part.member);
  if (!member.session.has_value() || member.observed->boot != part.boot) return false;
  return IsLoaded(member, core.NameOf(sync.version, member.observed->limits.kind));
}

struct Tally {
  uint32_t remaining = 0;
  uint32_t loaded = 0;
};

Tally DropAndCount(Core& core, const PoolId& id, Pool& pool) {
  Tally tally;
  bool changed = false;
  for (SyncMember& part : pool.sync->members) {
    if (part.dropped.empty()) {
      part.dropped = WhyDropped(core, *pool.sync, part);
      changed = changed || !part.dropped.empty();
    }
    if (!part.dropped.empty()) continue;
    ++tally.remaining;
    if (HasIt(core, *pool.sync, part)) ++tally.loaded;
  }
  if (changed) core.SaveSync(id, pool);
  return tally;
}

void WriteDecision(Core& core, const PoolId& id, Pool& pool, bool commit, const std::string& why) {
  pool.decision = DecisionRecord{pool.sync->epoch, pool.sync->version.key, commit, why};
  core.Save(DecisionKey(id.adapter, id.pool), *pool.decision);
  pool.sync.reset();
  pool.canaries_passed.clear();
  pool.no_slot_since.reset();
  pool.decided_at = core.now;
  core.SaveSync(id, pool);
  core.SavePool(id, pool);
}

void Commit(Core& core, const PoolId& id, Pool& pool) {
  const SyncRecord& sync = *pool.sync;
  std::vector<Activation>& history = pool.record.history;
  const bool new_lineage = sync.overriding || (!history.empty() && history.back().version.key.run !=
                                                                       sync.version.key.run);
  if (new_lineage) history.clear();
  std::erase_if(history, [&](const Activation& a) { return a.version.key == sync.version.key; });
  history.push_back({sync.epoch, sync.version});
  if (history.size() > kHistoryLimit) history.erase(history.begin());
  for (const SyncMember& part : sync.members) {
    if (part.dropped.empty()) core.members.at(part.member).failures = 0;
  }
  pool.deaths = 0;
  WriteDecision(core, id, pool, true, "");
}

// The version waits again, unless something newer does already or nothing may wait for it.
void Abort(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy* policy,
           const std::string& why) {
  const VersionKey key = pool.sync->version.key;
  const bool from_queue = !pool.sync->overriding && policy != nullptr &&
                          policy->pools.at(id.pool).kind == fleet::PoolSource::Kind::kPublished;
  const bool goes_back = from_queue && !core.IsPoisoned(key) &&
                         (pool.record.pending.empty() || policy->skip == fleet::SkipRule::kNever);
  if (goes_back) pool.record.pending.insert(pool.record.pending.begin(), key);
  // Versions that kill engines may do so ever more seldom. Whatever else ended it, a deadline or
  // too few engines, may be over by the next try, and that try may be of another version.
  const bool died = why == "ENGINE_DIED";
  pool.retry_at = core.now + (died ? core.Backoff(++pool.deaths) : core.config.retry_min_ms);
  WriteDecision(core, id, pool, false, why);
}

// What ends a sync whatever its members do; empty when nothing does.
std::string WhyStopped(const Core& core, const PoolId& id, const Pool& pool,
                       const fleet::AdapterPolicy* policy) {
  if (policy == nullptr) return "POLICY_CHANGED";
  const SyncRecord& sync = *pool.sync;
  if (!sync.overriding && pool.record.override_to.has_value()) return "OVERRIDDEN";
  if (sync.overriding && pool.record.override_to != sync.version.key) return "OVERRIDDEN";
  const fleet::PoolSource& source = policy->pools.at(id.pool);
  const bool published = source.kind == fleet::PoolSource::Kind::kPublished;
  if (!sync.overriding && published &&
      sync.version.key.run != core.adapters.at(id.adapter).current_run) {
    return "RUN_FENCED";
  }
  if (core.IsPoisoned(sync.version.key)) return "POISONED";
  return "";
}

void AdvanceRunning(Core& core, const PoolId& id, Pool& pool) {
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  const std::string stopped = WhyStopped(core, id, pool, policy);
  if (!stopped.empty()) return Abort(core, id, pool, policy, stopped);
  if (EngineDiedOfIt(core, pool)) return Abort(core, id, pool, policy, "ENGINE_DIED");
  const Tally tally = DropAndCount(core, id, pool);
  const uint32_t needed = policy->min_engines.Of(static_cast<uint32_t>(pool.sync->members.size()));
  if (tally.remaining < needed) return Abort(core, id, pool, policy, "TOO_FEW_ENGINES");
  if (tally.loaded == tally.remaining) return Commit(core, id, pool);
  if (core.now - pool.sync_began < policy->stage_deadline_ms) return;
  if (tally.loaded < needed) return Abort(core, id, pool, policy, "STAGE_DEADLINE");
  for (SyncMember& part : pool.sync->members) {
    if (!part.dropped.empty() || HasIt(core, *pool.sync, part)) continue;
    part.dropped = "STAGE_DEADLINE";
    Exclude(core, core.members.at(part.member), part.dropped);
  }
  Commit(core, id, pool);
}

// --- while it waits

void WaitFor(Pool& pool, std::string reason, std::string detail = "") {
  pool.waits_for = std::move(reason);
  pool.detail = std::move(detail);
}

// Why a member cannot be staged on; empty when it can.
std::string WhyUnfit(const Core& core, const Member& member, const VersionInfo& version) {
  const MemberStanding standing = StandingOf(core, member);
  if (standing == MemberStanding::kReady)
    return fleet::WhyNotServable(member.observed->limits, version.traits);
  const std::string reason = StandingReason(core, member);
  return absl::StrCat(ToAbsl(ToString(standing)), reason.empty() ? "" : ", ", reason);
}

// Members of the pool that the version can be staged on; `unfit` says why others are none.
std::vector<Member*> Eligible(Core& core, const PoolId& id, const VersionInfo& version,
                              std::string& unfit) {
  constexpr size_t kNamed = 4;  // of a large fleet, enough to see what is wrong
  std::vector<Member*> members;
  size_t others = 0;
  for (auto& [member_id, member] : core.members) {
    if (member.record.pool != id.pool || member.record.dead) continue;
    const std::string why = WhyUnfit(core, member, version);
    if (why.empty()) {
      members.push_back(&member);
    } else if (++others <= kNamed) {
      absl::StrAppend(&unfit, "; ", member_id.value, ": ", why);
    }
  }
  if (others > kNamed) absl::StrAppend(&unfit, "; and ", others - kNamed, " more");
  return members;
}

void Start(Core& core, const PoolId& id, Pool& pool, const fleet::AdapterPolicy& policy,
           const Candidate& next, const std::vector<Member*>& members,
           const std::set<MemberId>& without_slot) {
  pool.record.epoch = Epoch(pool.record.epoch.value + 1);
  std::erase(pool.record.pending, next.version.key);
  SyncRecord sync;
  sync.epoch = pool.record.epoch;
  sync.version = next.version;
  sync.mode = policy.mode;
  sync.overriding = next.overriding;
  for (const Member* member : members) {
    core.NameOf(next.version, member->observed->limits.kind);
    CountDeaths(core,
                *member);  // now that the name is known, what it did before is not this sync's
    const bool fits = !without_slot.contains(member->id);
    sync.members.push_back({member->id, member->observed->boot, fits ? "" : "NO_SLOT",
                            DeathsOn(core, next.version.key, member->id)});
  }
  pool.sync = std::move(sync);
  pool.sync_began = core.now;
  pool.no_slot_since.reset();
  WaitFor(pool, "");
  core.SavePool(id, pool);
  core.SaveSync(id, pool);
}

void AdvanceWaiting(Core& core, const PoolId& id, Pool& pool) {
  const fleet::AdapterPolicy* policy = PolicyOf(core, id);
  const std::optional<Candidate> next = policy != nullptr ? CandidateOf(core, id) : std::nullopt;
  if (!next.has_value()) return WaitFor(pool, "");
  // The one place where the mode is refused: HOLDING and LOCKING exist in phases, rows and Desired.
  if (policy->mode == fleet::SyncMode::kBarrier) {
    return WaitFor(pool, "UNIMPLEMENTED",
                   "mode BARRIER is not built yet; set the policy's mode to ROLLING");
  }
  if (!core.held.contains(next->version.key)) return WaitFor(pool, "HOLD_PENDING");
  std::string unfit;
  const std::vector<Member*> members = Eligible(core, id, next->version, unfit);
  if (core.now < pool.retry_at)
    return WaitFor(pool, "RETRY_LATER", absl::StrCat(pool.decision->reason, unfit));
  const uint32_t needed = policy->min_engines.Of(static_cast<uint32_t>(members.size()));
  if (members.size() < needed) {
    return WaitFor(
        pool, "TOO_FEW_ENGINES",
        absl::StrCat(members.size(), " engines are ready, ", needed, " are needed", unfit));
  }
  const SlotVerdict verdict = CheckSlots(core, members, next->version);
  if (!verdict.without_slot.empty()) {
    if (!pool.no_slot_since.has_value()) pool.no_slot_since = core.now;
    // One full engine delays the others no longer than a slow one would.
    const bool waited = core.now - *pool.no_slot_since >= policy->stage_deadline_ms;
    const size_t fitting = members.size() - verdict.without_slot.size();
    if (!waited || fitting < needed) return WaitFor(pool, "NO_SLOT", verdict.detail);
  }
  Start(core, id, pool, *policy, *next, members, verdict.without_slot);
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
  } else if (!pool.record.pending.empty()) {
    key = pool.record.pending.front();
  }
  if (!key.has_value() || core.IsPoisoned(*key)) return std::nullopt;
  if (pool.committed() != nullptr && pool.committed()->version.key == *key) return std::nullopt;
  const VersionInfo* version = core.FindVersion(*key);
  if (version == nullptr) return std::nullopt;
  return Candidate{*version, pool.record.override_to.has_value()};
}

void AdvanceSyncs(Core& core) {
  if (!core.store_known || !core.meta.settled) return;
  for (auto& [id, pool] : core.pools) {
    if (pool.sync.has_value()) AdvanceRunning(core, id, pool);
    if (!pool.sync.has_value()) AdvanceWaiting(core, id, pool);
  }
}

std::optional<Tick> SyncWakeAt(const Core& core) {
  std::optional<Tick> wake;
  const auto at = [&](Tick tick) {
    if (tick > core.now && (!wake.has_value() || tick < *wake)) wake = tick;
  };
  for (const auto& [id, pool] : core.pools) {
    const fleet::AdapterPolicy* policy = PolicyOf(core, id);
    if (policy == nullptr) continue;
    if (pool.sync.has_value()) {
      at(pool.sync_began + policy->stage_deadline_ms);
      at(NextCanaryAt(core, pool, policy->stage_deadline_ms));
    }
    at(pool.retry_at);
    at(pool.decided_at + core.config.deliver_ms);
    if (pool.no_slot_since.has_value()) at(*pool.no_slot_since + policy->stage_deadline_ms);
  }
  return wake;
}

}  // namespace lorry::sync
