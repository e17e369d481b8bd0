#include "tests/sim/demands.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "lib/fleet/quiesce.h"

namespace lorry::sim {
namespace {

using sync::MemberStanding;

// Names that this member was told it must have loaded: they may fill it.
size_t MustNames(const fleet::Desired& desired) {
  return static_cast<size_t>(
      std::count_if(desired.wanted.begin(), desired.wanted.end(),
                    [](const fleet::WantedVersion& w) { return w.must && w.load; }));
}

// That adapters on demand need, as long as their rows stand where they do.
size_t SlotsOnDemand(const fleet::Desired& desired, const std::vector<fleet::ObservedRow>& rows) {
  const auto holds_one = [&](const fleet::ObservedRow& row) {
    bool is_on_demand = false, is_older = true;
    for (const fleet::WantedVersion& wanted : desired.wanted) {
      is_on_demand = is_on_demand || (wanted.on_demand && wanted.key.adapter == row.adapter);
      is_older = is_older && wanted.name != row.target;
    }
    return is_on_demand && is_older && row.mode == fleet::RowMode::kOpen;
  };
  const bool any = std::ranges::any_of(desired.wanted, &fleet::WantedVersion::on_demand);
  return std::max<size_t>(any ? 1 : 0, static_cast<size_t>(std::ranges::count_if(rows, holds_one)));
}

std::string WhyMissing(World& world, SimProxy& proxy, const VersionKey& key,
                       const std::string& who) {
  const auto stored = world.store().versions().find(key);
  if (stored == world.store().versions().end()) return "";  // an alias may outlive what it names
  if (proxy.engine().Had(stored->second.digest, world.sim().now())) return "";
  if (HasReason(world, proxy, key)) return "";
  return absl::StrCat(proxy.member().value, " has not loaded ", ToString(key), ", as ", who,
                      " was promised");
}

// Aliases and leases are promises: what they name is loaded on every READY member of the pool.
std::string WhyPromisesFail(World& world, SimProxy& proxy) {
  for (const auto& [alias, key] : world.store().aliases()) {
    const auto& policy = world.store().adapters().at(alias.first).policy;
    if (!policy.pools.contains(proxy.pool())) continue;
    std::string why = WhyMissing(world, proxy, key, "the alias " + alias.second.value);
    if (!why.empty()) return why;
  }
  for (const auto& [promise, until] : world.sim().oracle.leases()) {
    if (until <= world.sim().now() || proxy.pool().value != "rollout") continue;
    std::string why = WhyMissing(world, proxy, promise.first, promise.second);
    if (!why.empty()) return why;
  }
  return "";
}

// EXCLUDED for as long as it is to load, or its pool waits for, what its engine refuses and others
// of its kind have.
bool IsExcludedWithReason(World& world, const sync::Status& status,
                          const sync::MemberStatus& member) {
  if (member.standing != MemberStanding::kExcluded) return false;
  const SimEngine& engine = world.proxy(member.member.value).engine();
  const auto refuses = [&](const VersionKey& key) {
    return world.store().Has(key) && !engine.Takes(world.store().Contents(key));
  };
  const auto& wanted = world.desired(member.member).wanted;
  return std::any_of(wanted.begin(), wanted.end(),
                     [&](const auto& w) { return w.load && refuses(w.key); }) ||
         std::any_of(status.pools.begin(), status.pools.end(), [&](const auto& pool) {
           return pool.pool == member.pool &&
                  std::any_of(pool.pending.begin(), pool.pending.end(), refuses);
         });
}

// Each version and row by itself: a reason for one excuses no other.
std::string WhyNotCurrent(World& world, SimProxy& proxy) {
  const fleet::Desired& desired = world.desired(proxy.member());
  for (const fleet::WantedVersion& wanted : desired.wanted) {
    if (!wanted.must || !wanted.load) continue;
    if (proxy.engine().Had(wanted.digest, world.sim().now())) continue;
    if (HasReason(world, proxy, wanted.key)) continue;
    return absl::StrCat(proxy.member().value, " has not loaded ", wanted.name.value);
  }
  const fleet::Observed observed = proxy.machine().Observe();
  for (const fleet::DesiredRow& row : desired.rows) {
    const auto has = std::find_if(observed.rows.begin(), observed.rows.end(),
                                  [&](const auto& r) { return r.adapter == row.adapter; });
    const bool is_there = has != observed.rows.end() && has->mode == row.mode &&
                          (row.mode != fleet::RowMode::kOpen ||
                           (has->epoch == row.epoch && has->target == row.target));
    const auto target = std::find_if(desired.wanted.begin(), desired.wanted.end(),
                                     [&](const auto& w) { return w.name == row.target; });
    const bool excused = target != desired.wanted.end() && HasReason(world, proxy, target->key);
    if (is_there || excused) continue;
    return absl::StrCat(proxy.member().value, " does not serve ", row.adapter.value,
                        " as it was told");
  }
  return "";
}

// Status says why a member has fetched what it must have and does not load it.
std::string WhyUntold(World& world, const sync::MemberStatus& member) {
  if (member.standing != MemberStanding::kReady) return "";  // its standing says why
  for (const fleet::WantedVersion& wanted : world.desired(member.member).wanted) {
    const auto its = std::ranges::find(member.observed.residencies, wanted.name,
                                       &fleet::ObservedResidency::name);
    if (!wanted.must || its == member.observed.residencies.end()) continue;
    if (its->state != fleet::ResidencyState::kFetched || !its->reason.empty()) continue;
    return absl::StrCat("nobody says why ", member.member.value, " does not load ",
                        wanted.name.value);
  }
  return "";
}

// Engines refuse what waits, died or hung of it.
bool IsGivenUp(const sync::PoolStatus& pool) {
  return pool.waits_for == "REFUSED" || pool.waits_for == "POISONED" ||
         pool.waits_for == "STALLS_ENGINES";
}

// What the pool should come to by the policy that its adapter has now.
std::optional<VersionKey> GoalOf(World& world, const sync::Status& status,
                                 const sync::PoolStatus& pool) {
  const fleet::PoolSource source =
      world.store().adapters().at(pool.adapter).policy.pools.at(pool.pool);
  if (source.kind == fleet::PoolSource::Kind::kPublished) return world.store().Newest(pool.adapter);
  if (source.kind == fleet::PoolSource::Kind::kAlias) {
    const auto alias = world.store().aliases().find({pool.adapter, source.alias});
    return alias != world.store().aliases().end() ? std::optional(alias->second) : std::nullopt;
  }
  for (const sync::PoolStatus& followed : status.pools) {
    if (followed.adapter == pool.adapter && followed.pool == source.pool &&
        followed.committed.has_value())
      return followed.committed->version.key;
  }
  return std::nullopt;
}

std::string WhyNotAtGoal(World& world, const sync::Status& status, const sync::PoolStatus& pool) {
  const fleet::AdapterPolicy& policy = world.store().adapters().at(pool.adapter).policy;
  if (!policy.pools.contains(pool.pool)) return "";
  const std::optional<VersionKey> newest = GoalOf(world, status, pool);
  if (!newest.has_value() || !world.store().Has(*newest) || pool.waits_for == "NO_SLOT") return "";
  // A verdict on what is harmless, and was trained on the engines' base model, is no reason.
  const SimDirectory& contents = world.store().Contents(*newest);
  const bool is_good = contents.harm == Harm::kNone && contents.hidden_size == 1;
  if (IsGivenUp(pool) && !is_good) return "";
  const bool is_there = pool.committed.has_value() && pool.committed->version.key == *newest;
  if (is_there) return "";
  // With skip NEVER a full queue turned the newest away, and said so.
  const bool never = policy.skip == fleet::SkipMode::kNever;
  if (never && pool.pending.empty() && pool.committed.has_value()) return "";
  // An engine died twice of what others have loaded, is asked for it no more, and none may pass it.
  if (never && pool.waits_for == "TOO_FEW_ENGINES" && !pool.pending.empty() &&
      world.sim().lives.DiedTwice(pool.pending.front())) {
    return "";
  }
  // Fewer members than the policy wants are left of those that should be, and it says so.
  const bool is_followed = policy.pools.at(pool.pool).kind != fleet::PoolSource::Kind::kPublished;
  uint32_t members = 0, ready = 0;
  for (const sync::MemberStatus& member : status.members) {
    if (member.pool != pool.pool) continue;
    ++members;
    // An alias may name what none of them takes.
    if (is_followed && HasReason(world, world.proxy(member.member.value), *newest)) continue;
    const fleet::EngineKind kind = world.proxy(member.member.value).engine().limits().kind;
    ready += member.standing == MemberStanding::kReady && fleet::CanQuiesce(kind, policy.quiesce);
  }
  if (pool.waits_for == "TOO_FEW_ENGINES" && policy.min_engines.Of(members) > ready) return "";
  return absl::StrCat(ToString(*newest), " was not decided in ", pool.pool.value);
}

// Who needs each version that the store keeps at the orchestrator's word.
std::string WhyHeld(World& world, const sync::Status& status) {
  std::set<VersionKey> needed;
  for (const sync::MemberStatus& member : status.members) {
    for (const fleet::WantedVersion& wanted : world.desired(member.member).wanted)
      needed.insert(wanted.key);
  }
  for (const auto& [alias, key] : world.store().aliases()) needed.insert(key);
  for (const sync::LeaseStatus& lease : status.leases) needed.insert(lease.record.version.key);
  for (const sync::PoolStatus& pool : status.pools) {
    if (pool.sync.has_value()) needed.insert(pool.sync->version.key);
    const fleet::AdapterPolicy& policy = world.store().adapters().at(pool.adapter).policy;
    if (!policy.pools.contains(pool.pool)) continue;
    const size_t window = std::min<size_t>(pool.history.size(), policy.KeepCount());
    for (size_t i = pool.history.size() - window; i < pool.history.size(); ++i)
      needed.insert(pool.history[i].version.key);
    needed.insert(pool.pending.begin(), pool.pending.end());
    if (pool.override_to.has_value()) needed.insert(*pool.override_to);
  }
  for (const VersionKey& key : world.store().held()) {
    if (!needed.contains(key)) return absl::StrCat(ToString(key), " is held for nobody");
  }
  return "";
}

// What is remembered of versions that nobody can ask for any more.
std::string WhyRemembered(World& world, const sync::Status& status) {
  const auto is_known = [&](const VersionKey& key) {
    return world.store().Has(key) ||
           std::ranges::any_of(status.leases,
                               [&](const auto& its) { return its.record.version.key == key; }) ||
           std::ranges::any_of(status.pools, [&](const sync::PoolStatus& pool) {
             return (pool.sync.has_value() && pool.sync->version.key == key) ||
                    std::ranges::any_of(pool.history,
                                        [&](const auto& its) { return its.version.key == key; });
           });
  };
  for (const auto& [key, value] : world.records()) {
    const auto* verdict = std::get_if<sync::VerdictRecord>(&value);
    if (verdict != nullptr && !is_known(verdict->version))
      return absl::StrCat("a verdict on ", ToString(verdict->version), ", which is gone, is kept");
  }
  return "";
}

// Docs: an engine needs `keep` slots and one for the next version of each adapter, and one for what
// an alias or a lease names; adapters on demand share one, and one for the next.
std::string WhySlotsAreMiscounted(World& world, const sync::Status& status) {
  for (const sync::MemberStatus& member : status.members) {
    if (member.observed.journal.empty() || member.standing == MemberStanding::kDead) continue;
    uint32_t needed = 0, kept = 0;
    bool any_on_demand = false;
    for (const auto& [adapter, info] : world.store().adapters()) {
      const bool is_stored = std::ranges::any_of(
          world.store().versions(), [&](const auto& its) { return its.first.adapter == adapter; });
      if (!is_stored || !info.policy.pools.contains(member.pool)) continue;
      std::set<VersionKey> named;
      for (const auto& [alias, key] : world.store().aliases()) {
        if (alias.first == adapter) named.insert(key);
      }
      for (const sync::LeaseStatus& lease : status.leases) {
        const VersionKey& key = lease.record.version.key;
        if (lease.record.pool == member.pool && key.adapter == adapter) named.insert(key);
      }
      kept += static_cast<uint32_t>(named.size());
      needed += static_cast<uint32_t>(named.size());
      const bool is_on_demand = info.policy.residency == fleet::ResidencyMode::kOnDemand;
      any_on_demand = any_on_demand || is_on_demand;
      if (is_on_demand) continue;
      const bool keeps_all = info.policy.keep.kind == fleet::KeepRule::Kind::kAll;
      const uint32_t window = keeps_all ? info.policy.max_staleness + 1 : info.policy.KeepCount();
      kept += window;
      needed += window + 1;
    }
    kept += any_on_demand ? 1 : 0;
    needed += any_on_demand ? 2 : 0;
    const uint32_t slots = member.observed.limits.slots;
    const bool is_short = slots != 0 && needed > slots;
    if (member.slot_need.needed != needed || member.slot_need.kept != kept ||
        member.slot_need.shortage.empty() == is_short)
      return absl::StrCat("slots of ", member.member.value, " are miscounted: ", needed, " and ",
                          kept, ", and status says ", member.slot_need.needed, " and ",
                          member.slot_need.kept);
  }
  return "";
}

// A verdict keeps it from engines, some of which did not take it, or did not apply it.
bool IsRefused(World& world, const VersionKey& key) {
  if (world.leader() == nullptr || !world.sim().lives.IsToBlame(key)) return false;
  const std::vector<sync::VerdictStatus> verdicts = world.leader()->machine().GetStatus().verdicts;
  return std::ranges::any_of(verdicts, [&](const sync::VerdictStatus& said) {
    return said.version == key && said.verdict == sync::Verdict::kRefused;
  });
}

}  // namespace

bool HasReason(World& world, SimProxy& proxy, const VersionKey& key) {
  if (!world.store().Has(key)) return true;  // what the store has lost nobody fetches again
  const sync::VersionInfo& info = world.store().versions().at(key);
  const fleet::EngineLimits& limits = proxy.engine().limits();
  const fleet::AdapterPolicy& policy = world.store().adapters().at(key.adapter).policy;
  if (!fleet::WhyNotServable(limits, info.traits, policy).empty()) return true;
  const EngineName name =
      fleet::MakeEngineName(key, info.digest, fleet::RenderFor(limits.kind, info.traits));
  std::string said;
  for (const fleet::ObservedResidency& r : proxy.machine().Observe().residencies) {
    if (r.name == name) said = r.reason;
  }
  const SimDirectory& contents = world.store().Contents(key);
  // What some engines of a group refuse, a verdict may keep from all of them.
  if (!proxy.engine().Takes(contents) || contents.harm == Harm::kRefusedBySome) return true;
  if (world.sim().lives.CostTwo(key) || IsRefused(world, key)) return true;
  return said == "NO_SLOT" && IsOvercommitted(world, proxy);
}

bool IsOvercommitted(World& world, SimProxy& proxy) {
  const uint32_t slots = proxy.engine().limits().slots;
  if (slots == 0 || !proxy.alive()) return false;
  const fleet::Desired& desired = world.desired(proxy.member());
  const size_t on_demand = SlotsOnDemand(desired, proxy.machine().Observe().rows);
  return MustNames(desired) + on_demand >= slots;
}

bool SaysWhyNothingMoves(World& world) {
  SimLeader* leader = world.leader();
  if (leader == nullptr) return false;
  const sync::Status status = leader->machine().GetStatus();
  const bool nobody =
      std::none_of(status.members.begin(), status.members.end(), [](const sync::MemberStatus& m) {
        return m.standing == MemberStanding::kReady || m.standing == MemberStanding::kExcluded;
      });
  const bool reported =
      std::any_of(status.pools.begin(), status.pools.end(), [](const sync::PoolStatus& pool) {
        return pool.waits_for == "NO_SLOT" || pool.waits_for == "TOO_FEW_ENGINES" ||
               pool.waits_for == "UNIMPLEMENTED" || IsGivenUp(pool);
      });
  return nobody || reported;
}

namespace {

// Why a request of what is loaded on demand waited in vain, where nothing excuses that.
std::string WhyNotBrought(World& world, SimProxy& proxy, const AdapterName& adapter) {
  const fleet::Desired& desired = world.desired(proxy.member());
  if (IsOvercommitted(world, proxy)) return "";
  if (proxy.machine().Observe().health != fleet::MemberHealth::kReady) return "";
  for (const fleet::DesiredRow& row : desired.rows) {
    const auto target = std::ranges::find(desired.wanted, row.target, &fleet::WantedVersion::name);
    if (row.adapter != adapter || target == desired.wanted.end()) continue;
    if (HasReason(world, proxy, target->key)) return "";
    return absl::StrCat(proxy.member().value, " keeps requests of ", adapter.value, " waiting");
  }
  return "";
}

void Demand(World& world, const std::string& why_not) {
  Oracle& oracle = world.sim().oracle;
  if (!why_not.empty() && !oracle.violated()) oracle.Violate(13, why_not);
}

}  // namespace

void AskForAll(World& world, int64_t wait_ms) {
  constexpr int64_t kLastsMs = 500, kSlackMs = 1'000;
  for (auto& [member, proxy] : world.proxies()) proxy->AskForAll(kLastsMs);
  world.RunFor(wait_ms + kSlackMs);
  for (auto& [member, proxy] : world.proxies()) {
    for (const AdapterName& adapter : proxy->GivenUp())
      Demand(world, WhyNotBrought(world, *proxy, adapter));
  }
}

void AskForOwn(World& world) {
  constexpr int64_t kLookMs = 1'000, kOverMs = 60'000;
  for (auto& [member, proxy] : world.proxies()) proxy->FrameworkReleasesForOwn();
  for (int64_t waited_ms = 0; waited_ms < kOverMs; waited_ms += kLookMs) {
    world.RunFor(kLookMs);
    for (auto& [member, proxy] : world.proxies()) Demand(world, proxy->WhyNoOwn());
  }
}

std::string WhyUnsettled(World& world, const PoolName& pool_name) {
  SimLeader* leader = world.leader();
  if (leader == nullptr) return "there is no leader";
  const sync::Status status = leader->machine().GetStatus();
  bool any_ready = false;
  for (const sync::MemberStatus& member : status.members) {
    if (member.standing == MemberStanding::kWedged) continue;
    if (member.standing != MemberStanding::kReady && !IsExcludedWithReason(world, status, member))
      return absl::StrCat(member.member.value, " is not ready");
    SimProxy& proxy = world.proxy(member.member.value);
    if (std::string why = WhyNotCurrent(world, proxy); !why.empty()) return why;
    if (std::string why = WhyPromisesFail(world, proxy); !why.empty()) return why;
    if (std::string why = WhyUntold(world, member); !why.empty()) return why;
    if (std::string why = world.WhyNamesStay(member.member); !why.empty()) return why;
    any_ready = any_ready || member.pool == pool_name;
  }
  if (!any_ready) return "";
  for (const sync::PoolStatus& pool : status.pools) {
    if (std::string why = WhyNotAtGoal(world, status, pool); !why.empty()) return why;
  }
  if (std::string why = WhyHeld(world, status); !why.empty()) return why;
  if (std::string why = WhyRemembered(world, status); !why.empty()) return why;
  if (std::string why = WhySlotsAreMiscounted(world, status); !why.empty()) return why;
  return world.WhyWatchesHang();
}

}  // namespace lorry::sim
