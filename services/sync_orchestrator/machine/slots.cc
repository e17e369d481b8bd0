#include "services/sync_orchestrator/machine/slots.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/counted.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/roster.h"

namespace lorry::sync {
namespace {

bool HoldsASlot(fleet::ResidencyState state) {
  return state == fleet::ResidencyState::kLoading || state == fleet::ResidencyState::kLoaded ||
         state == fleet::ResidencyState::kUnloading;
}

bool IsServed(const Member& member, const EngineName& name) {
  for (const fleet::ObservedRow& row : member.observed->rows) {
    if (row.mode == fleet::RowMode::kOpen && row.target == name) return true;
  }
  return false;
}

// Sorted, each once; they belong to the member.
using Names = std::vector<std::string_view>;

void Sort(Names& names) {
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
}

bool Has(const Names& names, const EngineName& name) {
  return std::ranges::binary_search(names, std::string_view(name.value));
}

// The names of wanted versions in the member's document for which `is` holds.
template <typename Is>
Names NamesThat(const Member& member, Is is) {
  Names names;
  for (const auto& [adapter, part] : member.desired.parts) {
    for (const fleet::WantedVersion& wanted : part->wanted) {
      if (is(wanted)) names.push_back(wanted.name.value);
    }
  }
  Sort(names);
  return names;
}

Names MustNames(const Member& member) {
  return NamesThat(member, [](const fleet::WantedVersion& wanted) { return wanted.must; });
}

bool GivesWay(const fleet::WantedVersion& wanted) { return wanted.on_demand && !wanted.must; }

// A number that is never below that of Holders, and is found without making sets of names.
size_t HoldersAtMost(const Member& member) {
  size_t count = 0;
  for (const auto& [adapter, part] : member.desired.parts)
    count += static_cast<size_t>(std::ranges::count_if(part->wanted, &fleet::WantedVersion::must));
  return count + static_cast<size_t>(std::ranges::count_if(member.observed->residencies, HoldsASlot,
                                                           &fleet::ObservedResidency::state));
}

// Names that hold a slot on `member` and cannot leave it now. What is loaded on demand gives way,
// in use or not: its proxy sees to it.
Names Holders(const Member& member) {
  Names holders = MustNames(member);
  const Names on_demand = NamesThat(member, GivesWay);
  for (const fleet::ObservedResidency& residency : member.observed->residencies) {
    if (!HoldsASlot(residency.state) || Has(on_demand, residency.name)) continue;
    const bool busy = residency.in_flight > 0 || !residency.count_known ||
                      residency.state != fleet::ResidencyState::kLoaded ||
                      IsServed(member, residency.name);
    if (busy) holders.push_back(residency.name.value);
  }
  Sort(holders);
  return holders;
}

std::string Join(const Names& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) {
    absl::StrAppend(out, ToAbsl(name));
  });
}

// The versions of `adapter` that an alias names, and those that a lease does and no alias.
struct Named {
  std::set<VersionKey> aliased;
  std::set<VersionKey> leased;
};

// Whether anything of it is stored: an adapter that was only created takes no slot.
bool HasVersion(const Core& core, const AdapterName& adapter) {
  const auto it = core.versions.lower_bound({adapter, RunId(0), VersionNumber(0)});
  return it != core.versions.end() && it->first.adapter == adapter;
}

Named NamedOf(const Core& core, const AdapterName& adapter, const PoolName& pool) {
  Named named;
  for (const auto& [alias, target] : core.aliases) {
    if (alias.first == adapter) named.aliased.insert(target);
  }
  for (const auto& [key, lease] : core.leases) {
    const VersionKey& version = lease.record.version.key;
    if (lease.record.pool == pool && version.adapter == adapter && !named.aliased.contains(version))
      named.leased.insert(version);
  }
  return named;
}

// `keep: ALL` evicts before the engine's limit is met, and never what staleness allows to be asked.
uint32_t WindowOf(const fleet::AdapterPolicy& policy) {
  return policy.keep.kind == fleet::KeepRule::Kind::kAll ? policy.max_staleness + 1
                                                         : policy.KeepCount();
}

}  // namespace

SlotVerdict CheckSlots(const Core& core, const std::vector<const Member*>& members,
                       const VersionInfo& version) {
  SlotVerdict verdict;
  for (const Member* member : members) {
    const uint32_t slots = member->observed->limits.slots;
    if (slots == 0 || HoldersAtMost(*member) + 1 <= slots) continue;
    Names holders = Holders(*member);
    if (holders.size() + 1 <= slots) continue;
    std::erase(holders, core.NameIn(version, member->observed->limits.kind).value);
    if (holders.size() + 1 <= slots) continue;
    verdict.without_slot.insert(member->id);
    verdict.detail =
        absl::StrCat("engine ", member->id.value, " has ", Counted(slots, "adapter slot"), ", ",
                     Counted(holders.size(), "is", "are"), " held by ", Join(holders),
                     "; raise its adapter limit, or drop an alias or a lease");
  }
  return verdict;
}

std::string WhyNoSlotForLease(const Core& core, const PoolName& pool, const VersionInfo& version) {
  for (const auto& [id, member] : core.members) {
    if (member.record.pool != pool || StandingOf(core, member) != MemberStanding::kReady) continue;
    const uint32_t slots = member.observed->limits.slots;
    if (slots == 0) continue;
    Names must = MustNames(member);
    const EngineName& name = core.NameIn(version, member.observed->limits.kind);
    must.push_back(name.value);
    Sort(must);
    Names on_demand = NamesThat(member, GivesWay);
    std::erase(on_demand, name.value);
    const bool shares = !on_demand.empty();
    if (must.size() + 1 + (shares ? 1 : 0) <= slots) continue;
    return absl::StrCat("engine ", id.value, " has ", Counted(slots, "adapter slot"), ": ",
                        must.size(), " would be held (", Join(must),
                        ") and one must stay free for the next version",
                        shares ? ", another for what is loaded on demand" : "");
  }
  return "";
}

SlotDemand DemandOf(const Core& core, const PoolName& pool) {
  SlotDemand demand;
  std::vector<std::string> terms;
  uint32_t on_demand = 0;
  for (const auto& [adapter, info] : core.adapters) {
    if (!info.policy.pools.contains(pool) || !HasVersion(core, adapter)) continue;
    const Named named = NamedOf(core, adapter, pool);
    const uint32_t window = WindowOf(info.policy);
    const auto aliased = static_cast<uint32_t>(named.aliased.size());
    const auto leased = static_cast<uint32_t>(named.leased.size());
    if (info.policy.residency == fleet::ResidencyMode::kOnDemand) {
      ++on_demand;
      demand.kept += aliased + leased;
      demand.needed += aliased + leased;
      if (aliased + leased > 0)
        terms.push_back(
            absl::StrCat(adapter.value, " ", aliased, " aliased + ", leased, " leased"));
      continue;
    }
    demand.kept += window + aliased + leased;
    demand.needed += window + 1 + aliased + leased;
    terms.push_back(absl::StrCat(adapter.value, " ", window, " kept + 1 next + ", aliased,
                                 " aliased + ", leased, " leased"));
  }
  if (on_demand > 0) {
    demand.kept += 1;
    demand.needed += 2;
    terms.push_back(absl::StrCat(on_demand, " on demand: 1 shared + 1 next"));
  }
  demand.arithmetic = absl::StrJoin(terms, "; ");
  return demand;
}

SlotNeed NeedOf(const SlotDemand& demand, const fleet::EngineLimits& limits) {
  SlotNeed need{.needed = demand.needed, .kept = demand.kept};
  if (limits.slots != 0 && need.needed > limits.slots) {
    need.shortage =
        absl::StrCat(Counted(limits.slots, "adapter slot"), ", ", need.needed, " are needed (",
                     demand.arithmetic, "): versions leave before their time, or the next one ",
                     "waits with NO_SLOT; raise ", ToAbsl(fleet::SlotsFlag(limits.kind)),
                     ", or lower keep, aliases or leases");
  }
  // One that batches requests of one adapter comes to no other while these are running.
  const bool is_alone = limits.batch_slots == 1 && need.needed > 1;
  if (limits.batch_slots != 0 && (need.kept > limits.batch_slots || is_alone)) {
    need.batch_cost = absl::StrCat(
        "batches requests of ", Counted(limits.batch_slots, "adapter"), " and keeps up to ",
        need.kept,
        is_alone
            ? ": the next version is not probed, nor served, until no request of another runs; "
              "raise "
            : ": while more are asked for, requests wait for another's batch to end; raise ",
        ToAbsl(fleet::BatchFlag(limits.kind)), " where the memory allows it");
  }
  return need;
}

}  // namespace lorry::sync
