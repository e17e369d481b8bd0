#include "services/sync_orchestrator/machine/wanted.h"

#include <algorithm>
#include <vector>

#include "lib/fleet/quiesce.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/trials.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

// kServed: a row serves the version. That makes it MUST, unless it is loaded on demand and the
// member's group has proven it.
enum class Need { kMay, kServed, kMust };

// Collects wanted versions of one member; the same name asked for twice takes the stronger wish.
class WantedSet {
 public:
  WantedSet(Core& core, const Member& member)
      : core_(core), member_(member), limits_(member.observed->limits) {}

  void Want(const fleet::AdapterPolicy& policy, const Pool& pool, const VersionInfo& version,
            Need need, uint32_t rank, bool leased = false) {
    if (!fleet::WhyNotServable(limits_, version.traits, policy).empty()) return;
    const GroupVerdict& verdict = VerdictOf(core_, member_.group, version.key);
    const Permission permission = PermissionOf(core_, member_, version, verdict);
    if (permission == Permission::kNo) return;
    const EngineName& name = core_.NameOf(version, limits_.kind);
    fleet::WantedVersion& wanted = Find(name);
    wanted.key = version.key;
    wanted.digest = version.digest;
    wanted.traits = version.traits;
    wanted.render = fleet::RenderFor(limits_.kind, version.traits);
    wanted.load = permission == Permission::kLoad;
    // A proven version may be loaded again after a death that this orchestrator, which may be away,
    // has not heard of.
    const bool proven = verdict.verdict == Verdict::kProven;
    const bool on_demand = policy.residency == fleet::ResidencyMode::kOnDemand;
    const bool served_must = need == Need::kServed && !(on_demand && proven);
    wanted.must = wanted.must || need == Need::kMust || served_must;
    wanted.on_demand = on_demand;
    wanted.deaths_allowed = DeathsOf(core_, member_, version) + (proven ? 1 : 0);
    wanted.on_this_boot = wanted.load && !proven;
    wanted.leased = wanted.leased || leased;
    wanted.eviction_rank = std::max(wanted.eviction_rank, rank);
    wanted.lag = LagOf(pool, version.key);
    wanted.probe = policy.probe;
    wanted.probe_gap_ppm = policy.probe_gap_ppm;
  }

  std::vector<fleet::WantedVersion> Take() { return std::move(wanted_); }

 private:
  // It is made where it is not there yet.
  fleet::WantedVersion& Find(const EngineName& name) {
    auto it = std::ranges::lower_bound(wanted_, name, {}, &fleet::WantedVersion::name);
    if (it == wanted_.end() || it->name != name) {
      it = wanted_.emplace(it);
      it->name = name;
    }
    return *it;
  }

  Core& core_;
  const Member& member_;
  const fleet::EngineLimits& limits_;
  std::vector<fleet::WantedVersion> wanted_;  // sorted by name
};

// What the member should serve: the decision, unless a verdict keeps its engine from loading that;
// then the newest before it that its kind has proven, within what staleness allows, not behind a
// barrier, and not from before what its row had followed and gave up, as no row goes back. Null:
// nothing.
const Activation* ServedBy(const Core& core, const AdapterInfo& info, const Pool& pool,
                           const Member& member) {
  const std::vector<Activation>& history = pool.record.history;
  if (!fleet::CanQuiesce(member.observed->limits.kind, info.policy.quiesce)) return nullptr;
  const fleet::ObservedRow* row = RowOf(member, info.adapter);
  const bool gave_up =
      row != nullptr && row->target.empty() && row->incarnation == core.meta.term.incarnation;
  const Epoch serve_from = std::max(pool.record.barrier, gave_up ? row->epoch : Epoch());
  for (size_t lag = 0; lag < history.size() && lag <= info.policy.max_staleness; ++lag) {
    const Activation& activation = history[history.size() - 1 - lag];
    if (activation.epoch < serve_from) break;
    const VersionInfo& version = activation.version;
    const GroupVerdict& verdict = VerdictOf(core, member.group, version.key);
    if (PermissionOf(core, member, version, verdict) == Permission::kNo) continue;
    const bool proven = verdict.verdict == Verdict::kProven;
    if (lag == 0 || proven) return &activation;
  }
  return nullptr;
}

// Whether the member's row stands on a decision for an earlier adapter of the same name, which is
// gone.
bool StandsOnAnother(const Core& core, const PoolRecord& pool, const fleet::ObservedRow* row) {
  if (pool.began.value == 0 || row == nullptr || row->target.empty()) return false;
  return row->incarnation != core.meta.term.incarnation || row->epoch < pool.began;
}

fleet::DesiredRow RowFor(Core& core, const AdapterInfo& info, const Pool& pool,
                         const Member& member, const Activation* served) {
  fleet::DesiredRow row;
  row.adapter = info.adapter;
  const bool is_anothers = StandsOnAnother(core, pool.record, RowOf(member, info.adapter));
  const Epoch serve_from = std::max(pool.record.barrier, is_anothers ? pool.record.began : Epoch());
  if (pool.barrier.has_value()) {
    row.mode = pool.barrier->locks ? fleet::RowMode::kLocked : fleet::RowMode::kHeld;
    row.epoch = pool.sync->epoch;
    row.hold_for_ms = info.policy.HoldLimitMs();
    row.serve_from = serve_from;
    row.quiesce = fleet::QuiesceOf(info.policy);
    return row;
  }
  row.epoch = std::max(pool.record.barrier, pool.record.began);
  if (pool.committed() == nullptr) return row;
  row.epoch = pool.committed()->epoch;
  if (served != nullptr) {
    row.mode = fleet::RowMode::kOpen;
    row.epoch = served->epoch;
    row.target = core.NameOf(served->version, member.observed->limits.kind);
    row.serve_from = serve_from;
    row.quiesce = fleet::QuiesceOf(info.policy);
    if (row.quiesce.kind != fleet::PauseKind::kNone) row.hold_for_ms = info.policy.HoldLimitMs();
  }
  return row;
}

// The window is the newest `keep` activations, and what a row here still stands on, so that its
// door knows the lag.
void WantHistory(Core& core, const AdapterInfo& info, const Pool& pool, const Member& member,
                 const Activation* serves, WantedSet& wanted) {
  const std::vector<Activation>& history = pool.record.history;
  const uint32_t keep = info.policy.KeepCount();
  const fleet::ObservedRow* row = RowOf(member, info.adapter);
  for (size_t i = 0; i < history.size(); ++i) {
    const size_t lag = history.size() - 1 - i;
    const bool in_window = lag < keep;
    const bool served =
        row != nullptr && row->mode != fleet::RowMode::kClosed &&
        row->target == core.NameOf(history[i].version, member.observed->limits.kind);
    const Need need = lag == 0 || &history[i] == serves ? Need::kServed : Need::kMay;
    // What the store deleted while the window was smaller comes back into it, and from nowhere. What
    // is loaded yet of a store that was lost may stay.
    const VersionInfo& version = history[i].version;
    const bool is_there = !core.store_known || core.versions.contains(version.key) ||
                          IsLoaded(member, core.NameOf(version, member.observed->limits.kind));
    if ((in_window && is_there) || served || need != Need::kMay) {
      wanted.Want(info.policy, pool, history[i].version, need, static_cast<uint32_t>(i));
    }
  }
}

void WantSync(const fleet::AdapterPolicy& policy, const Pool& pool, const Member& member,
              WantedSet& wanted) {
  if (!pool.sync.has_value()) return;
  const SyncMember* part = pool.sync->Find(member.id);
  if (part != nullptr && part->dropped == Drop::kNone)
    wanted.Want(policy, pool, pool.sync->version, Need::kMust, 0);
}

fleet::DoorRules RulesFor(const AdapterInfo& info) {
  fleet::DoorRules rules;
  rules.adapter = info.adapter;
  rules.current_run = info.current_run;
  rules.max_staleness = info.policy.max_staleness;
  rules.stale = info.policy.stale;
  rules.no_adapter = info.policy.no_adapter;
  rules.hold_limit_ms = info.policy.HoldLimitMs();
  rules.in_flight = info.policy.in_flight;
  rules.demand_wait_ms = info.policy.demand_wait_ms;
  return rules;
}

}  // namespace

uint32_t LagOf(const Pool& pool, const VersionKey& key) {
  const std::vector<Activation>& history = pool.record.history;
  for (size_t lag = 0; lag < history.size(); ++lag) {
    if (history[history.size() - 1 - lag].version.key == key) return static_cast<uint32_t>(lag);
  }
  return fleet::kLagNone;
}

DesiredPart PartOf(Core& core, const Member& member, const AdapterInfo& info) {
  static const Pool kNothing;
  const PoolId id{info.adapter, member.record.pool};
  const auto found = core.pools.find(id);
  const Pool& pool = found != core.pools.end() ? found->second : kNothing;
  ++core.work.parts;
  DesiredPart part;
  const Activation* served = ServedBy(core, info, pool, member);
  part.row = RowFor(core, info, pool, member, served);
  part.rules = RulesFor(info);
  WantedSet wanted(core, member);
  WantHistory(core, info, pool, member, served, wanted);
  WantSync(info.policy, pool, member, wanted);
  for (auto it = core.aliases.lower_bound({info.adapter, AliasName()});
       it != core.aliases.end() && it->first.first == info.adapter; ++it) {
    const VersionInfo* version = core.FindVersion(it->second);
    if (version == nullptr) continue;
    wanted.Want(info.policy, pool, *version, Need::kMust, 0);
    part.aliases.push_back(
        {info.adapter, it->first.second, core.NameOf(*version, member.observed->limits.kind)});
  }
  for (const LeaseRecord* lease : core.LeasesOf(id)) {
    wanted.Want(info.policy, pool, lease->version, Need::kMust, 0, true);
  }
  part.wanted = wanted.Take();
  return part;
}

}  // namespace lorry::sync
