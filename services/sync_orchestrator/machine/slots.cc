#include "services/sync_orchestrator/machine/slots.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/sync_orchestrator/machine/retention.h"
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

std::set<EngineName> MustNames(Core& core, const Member& member) {
  std::set<EngineName> must;
  const bool is_known = member.built_at == core.changes;
  const fleet::Desired built = is_known ? fleet::Desired() : BuildDesired(core, member);
  for (const fleet::WantedVersion& wanted : (is_known ? member.desired : built).wanted) {
    if (wanted.must) must.insert(wanted.name);
  }
  return must;
}

// Names that hold a slot on `member` and cannot leave it now.
std::set<EngineName> Holders(Core& core, const Member& member) {
  std::set<EngineName> holders = MustNames(core, member);
  for (const fleet::ObservedResidency& residency : member.observed->residencies) {
    const bool busy = residency.in_flight > 0 || !residency.count_known ||
                      residency.state != fleet::ResidencyState::kLoaded ||
                      IsServed(member, residency.name);
    if (HoldsASlot(residency.state) && busy) holders.insert(residency.name);
  }
  return holders;
}

std::string Join(const std::set<EngineName>& names) {
  return absl::StrJoin(names, ", ", [](std::string* out, const EngineName& name) {
    absl::StrAppend(out, name.value);
  });
}

}  // namespace

SlotVerdict CheckSlots(Core& core, const std::vector<Member*>& members,
                       const VersionInfo& version) {
  SlotVerdict verdict;
  for (const Member* member : members) {
    const uint32_t slots = member->observed->limits.slots;
    if (slots == 0) continue;
    std::set<EngineName> holders = Holders(core, *member);
    holders.erase(core.NameOf(version, member->observed->limits.kind));
    if (holders.size() + 1 <= slots) continue;
    verdict.without_slot.insert(member->id);
    verdict.detail = absl::StrCat("engine ", member->id.value, " has ", slots, " adapter slots, ",
                                  holders.size(), " are held by ", Join(holders),
                                  "; raise its adapter limit, or drop an alias or a lease");
  }
  return verdict;
}

std::string WhyNoSlotForLease(Core& core, const PoolName& pool, const VersionInfo& version) {
  for (const auto& [id, member] : core.members) {
    if (member.record.pool != pool || StandingOf(core, member) != MemberStanding::kReady) continue;
    const uint32_t slots = member.observed->limits.slots;
    if (slots == 0) continue;
    std::set<EngineName> must = MustNames(core, member);
    must.insert(core.NameOf(version, member.observed->limits.kind));
    if (must.size() + 1 <= slots) continue;
    return absl::StrCat("engine ", id.value, " has ", slots, " adapter slots: ", must.size(),
                        " would be held (", Join(must),
                        ") and one must stay free for the next version");
  }
  return "";
}

}  // namespace lorry::sync
