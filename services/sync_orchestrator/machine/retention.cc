#include "services/sync_orchestrator/machine/retention.h"

#include <algorithm>
#include <map>

#include "services/sync_orchestrator/machine/canary.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/sync.h"

namespace lorry::sync {
namespace {

// Collects wanted versions of one member; the same name asked for twice takes the stronger wish.
class WantedSet {
 public:
  WantedSet(Core& core, const Member& member) : core_(core), limits_(member.observed->limits) {}

  void Want(const fleet::AdapterPolicy& policy, const Pool& pool, const VersionInfo& version,
            bool must, uint32_t rank, bool load = true, bool leased = false) {
    if (!fleet::WhyNotServable(limits_, version.traits).empty()) return;
    const EngineName& name = core_.NameOf(version, limits_.kind);
    fleet::WantedVersion& wanted = wanted_[name];
    const bool is_new = wanted.name.empty();
    wanted.name = name;
    wanted.key = version.key;
    wanted.digest = version.digest;
    wanted.traits = version.traits;
    wanted.render = fleet::RenderFor(limits_.kind, version.traits);
    wanted.must = wanted.must || must;
    wanted.load = (!is_new && wanted.load) || load;
    wanted.leased = wanted.leased || leased;
    wanted.eviction_rank = std::max(wanted.eviction_rank, rank);
    wanted.lag = LagOf(pool, version.key);
    wanted.probe = policy.probe;
  }

  std::vector<fleet::WantedVersion> Take() {
    std::vector<fleet::WantedVersion> sorted;
    for (auto& [name, wanted] : wanted_) sorted.push_back(std::move(wanted));
    return sorted;
  }

 private:
  Core& core_;
  const fleet::EngineLimits& limits_;
  std::map<EngineName, fleet::WantedVersion> wanted_;
};

fleet::DesiredRow RowFor(Core& core, const AdapterInfo& info, const Pool& pool,
                         const Member& member) {
  fleet::DesiredRow row;
  row.adapter = info.adapter;
  if (const Activation* committed = pool.committed()) {
    row.mode = fleet::RowMode::kOpen;
    row.epoch = committed->epoch;
    row.target = core.NameOf(committed->version, member.observed->limits.kind);
    row.serve_old = info.policy.mode == fleet::SyncMode::kRolling;
  }
  return row;
}

// The window is the newest `keep` activations, and what a row here still stands on, so that its
// door knows the lag.
void WantHistory(Core& core, const AdapterInfo& info, const Pool& pool, const Member& member,
                 WantedSet& wanted) {
  const std::vector<Activation>& history = pool.record.history;
  const uint32_t keep = info.policy.KeepCount();
  const fleet::ObservedRow* row = RowOf(member, info.adapter);
  for (size_t i = 0; i < history.size(); ++i) {
    const size_t lag = history.size() - 1 - i;
    const bool in_window = lag < keep;
    const bool served =
        row != nullptr && row->mode != fleet::RowMode::kClosed &&
        row->target == core.NameOf(history[i].version, member.observed->limits.kind);
    if (in_window || served) {
      wanted.Want(info.policy, pool, history[i].version, lag == 0, static_cast<uint32_t>(i));
    }
  }
}

void WantSync(const fleet::AdapterPolicy& policy, const Pool& pool, const Member& member,
              const std::set<MemberId>& loaders, WantedSet& wanted) {
  if (!pool.sync.has_value()) return;
  for (const SyncMember& part : pool.sync->members) {
    if (part.member == member.id && part.dropped.empty()) {
      wanted.Want(policy, pool, pool.sync->version, true, 0, loaders.contains(member.id));
    }
  }
}

fleet::DoorRules RulesFor(const AdapterInfo& info) {
  fleet::DoorRules rules;
  rules.adapter = info.adapter;
  rules.current_run = info.current_run;
  rules.max_staleness = info.policy.max_staleness;
  rules.stale = info.policy.stale;
  rules.no_adapter = info.policy.no_adapter;
  rules.hold_limit_ms = info.policy.barrier_deadline_ms;
  return rules;
}

void AddAdapter(Core& core, const AdapterInfo& info, const PoolId& id, const Member& member,
                fleet::Desired& desired, WantedSet& wanted) {
  const Pool& pool = core.pools[id];
  desired.rows.push_back(RowFor(core, info, pool, member));
  desired.rules.push_back(RulesFor(info));
  WantHistory(core, info, pool, member, wanted);
  WantSync(info.policy, pool, member, pool.loaders, wanted);
  for (const auto& [name, target] : core.aliases) {
    const VersionInfo* version = name.first == info.adapter ? core.FindVersion(target) : nullptr;
    if (version == nullptr) continue;
    wanted.Want(info.policy, pool, *version, true, 0);
    desired.aliases.push_back(
        {info.adapter, name.second, core.NameOf(*version, member.observed->limits.kind)});
  }
  for (const auto& [key, lease] : core.leases) {
    const LeaseRecord& record = lease.record;
    if (record.pool != id.pool || record.version.key.adapter != info.adapter) continue;
    wanted.Want(info.policy, pool, record.version, true, 0, true, true);
  }
}

std::set<VersionKey> WhatToHold(const Core& core) {
  std::set<VersionKey> holds;
  for (const auto& [id, pool] : core.pools) {
    if (pool.sync.has_value()) holds.insert(pool.sync->version.key);
    // The window that engines keep: what lies behind it is the store's own to keep or to delete.
    const AdapterInfo* info = core.FindAdapter(id.adapter);
    const std::vector<Activation>& history = pool.record.history;
    const size_t window = std::min<size_t>(history.size(), info ? info->policy.KeepCount() : 0);
    for (size_t i = history.size() - window; i < history.size(); ++i) {
      holds.insert(history[i].version.key);
    }
    holds.insert(pool.record.pending.begin(), pool.record.pending.end());
    if (pool.record.override_to.has_value()) holds.insert(*pool.record.override_to);
    if (const std::optional<Candidate> next = CandidateOf(core, id))
      holds.insert(next->version.key);
  }
  for (const auto& [key, lease] : core.leases) holds.insert(lease.record.version.key);
  for (const auto& [alias, target] : core.aliases) {
    if (core.FindAdapter(alias.first) != nullptr) holds.insert(target);
  }
  for (const auto& [id, member] : core.members) {
    for (const fleet::WantedVersion& wanted : member.desired.wanted) holds.insert(wanted.key);
  }
  return holds;
}

// Above every revision of an earlier reign, so that the store tells a stale leader's set by its
// number: 18 bits of incarnation, 20 of term (a million reigns), 26 for the sets of one reign (one
// a second for two years).
Revision FirstHoldsRevision(const Term& term) {
  return Revision((term.incarnation << 46) | ((term.term & 0xfffff) << 26) | 1);
}

// Time and residencies decide who loads; everything else that documents are made of is counted.
void RefreshLoaders(Core& core) {
  for (auto& [id, pool] : core.pools) {
    if (!pool.sync.has_value()) continue;
    std::set<MemberId> loaders = MembersThatLoad(core, id);
    if (loaders == pool.loaders) continue;
    pool.loaders = std::move(loaders);
    ++core.changes;
  }
}

}  // namespace

uint32_t LagOf(const Pool& pool, const VersionKey& key) {
  const std::vector<Activation>& history = pool.record.history;
  for (size_t lag = 0; lag < history.size(); ++lag) {
    if (history[history.size() - 1 - lag].version.key == key) return static_cast<uint32_t>(lag);
  }
  return fleet::kLagNone;
}

fleet::Desired BuildDesired(Core& core, const Member& member) {
  fleet::Desired desired;
  desired.term = core.meta.term;
  desired.journal = member.record.journal;
  desired.boot = member.observed->boot;
  WantedSet wanted(core, member);
  for (const auto& [adapter, info] : core.adapters) {
    if (!info.policy.pools.contains(member.record.pool)) continue;
    AddAdapter(core, info, {adapter, member.record.pool}, member, desired, wanted);
  }
  desired.wanted = wanted.Take();
  return desired;
}

void AdvanceDesired(Core& core) {
  if (!core.store_known || !core.meta.settled) return;
  RefreshLoaders(core);
  for (auto& [id, member] : core.members) {
    if (!member.session.has_value() || !member.served) continue;
    const bool answered = member.observed->term == core.meta.term &&
                          member.observed->revision == member.desired.revision;
    const bool overdue = !answered && core.now - member.sent_at >= core.config.resend_ms;
    if (member.built_at == core.changes && !overdue) continue;
    fleet::Desired desired = BuildDesired(core, member);
    member.built_at = core.changes;
    desired.revision = member.desired.revision;
    if (desired == member.desired && !overdue) continue;
    desired.revision = Revision(member.desired.revision.value + 1);
    member.desired = std::move(desired);
    member.sent_at = core.now;
    core.held_at = 0;
    core.effects.push_back(SetDesired{*member.session, id, member.desired});
  }
}

void AdvanceHolds(Core& core) {
  // Until the fleet was adopted the store keeps what the earlier reign named.
  if (!core.store_known || !core.meta.settled) return;
  const bool overdue = core.holds_acked != core.holds_revision &&
                       core.now - core.holds_sent_at >= core.config.resend_ms;
  const bool first = core.holds_revision.value == 0;
  if (core.held_at == core.changes && !overdue && !first) return;
  core.held_at = core.changes;
  std::set<VersionKey> holds = WhatToHold(core);
  if (holds == core.holds && !overdue && !first) return;
  core.holds_revision =
      first ? FirstHoldsRevision(core.meta.term) : Revision(core.holds_revision.value + 1);
  core.holds = std::move(holds);
  std::erase_if(core.held, [&](const VersionKey& key) { return !core.holds.contains(key); });
  core.holds_sent[core.holds_revision] = core.holds;
  if (core.holds_sent.size() > kHoldsSentLimit) core.holds_sent.erase(core.holds_sent.begin());
  core.holds_sent_at = core.now;
  core.effects.push_back(SetHolds{core.holds_revision, {core.holds.begin(), core.holds.end()}});
}

bool IsCurrent(const Member& member) {
  if (!member.session.has_value() || member.desired.journal.empty()) return false;
  const fleet::Observed& observed = *member.observed;
  if (observed.term != member.desired.term || observed.revision != member.desired.revision)
    return false;
  for (const fleet::DesiredRow& row : member.desired.rows) {
    const fleet::ObservedRow* has = RowOf(member, row.adapter);
    if (has == nullptr || has->mode != row.mode) return false;
    if (row.mode == fleet::RowMode::kOpen && (has->epoch != row.epoch || has->target != row.target))
      return false;
  }
  for (const fleet::WantedVersion& wanted : member.desired.wanted) {
    if (wanted.must && wanted.load && !IsLoaded(member, wanted.name)) return false;
  }
  return true;
}

}  // namespace lorry::sync
