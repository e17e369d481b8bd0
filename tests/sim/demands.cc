#include "tests/sim/demands.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lorry::sim {
namespace {

using sync::MemberStanding;

// Some version finds its slots taken by what must stay, or is not tried again because this engine
// died of it twice, or does not belong to its base model, or is not applied by it: reported, not
// silent.
bool SaysWhy(const sync::MemberStatus& member) {
  return std::any_of(member.observed.residencies.begin(), member.observed.residencies.end(),
                     [](const fleet::ObservedResidency& r) {
                       return r.reason == "NO_SLOT" || r.reason == "ENGINE_DIED" ||
                              r.reason == "BASE_MODEL_MISMATCH" || r.reason == "PROBE_SAME_AS_BASE";
                     });
}

// Engines refuse what waits, died or hung of it.
bool IsGivenUp(const sync::PoolStatus& pool) {
  return pool.waits_for == "REFUSED" || pool.waits_for == "POISONED" ||
         pool.waits_for == "STALLS_ENGINES";
}

std::string WhyNotAtNewest(World& world, const sync::PoolStatus& pool) {
  const std::optional<VersionKey> newest = world.store().Newest(pool.adapter);
  const fleet::AdapterPolicy& policy = world.store().adapters().at(pool.adapter).policy;
  if (!newest.has_value() || pool.waits_for == "NO_SLOT" || IsGivenUp(pool)) return "";
  const bool is_there = pool.committed.has_value() && pool.committed->version.key == *newest;
  if (is_there) return "";
  // BARRIER is refused where it would begin, and says so.
  if (policy.mode == fleet::SyncMode::kBarrier && pool.waits_for == "UNIMPLEMENTED") return "";
  // With skip NEVER a full queue turned the newest away, and said so.
  const bool never = policy.skip == fleet::SkipRule::kNever;
  if (never && pool.pending.empty() && pool.committed.has_value()) return "";
  return absl::StrCat("the newest of ", pool.adapter.value, " was not decided");
}

}  // namespace

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

std::string WhyUnsettled(World& world, const PoolName& pool_name) {
  SimLeader* leader = world.leader();
  if (leader == nullptr) return "there is no leader";
  const sync::Status status = leader->machine().GetStatus();
  bool any_ready = false;
  for (const sync::MemberStatus& member : status.members) {
    if (member.standing == MemberStanding::kWedged) continue;
    if (member.standing != MemberStanding::kReady)
      return absl::StrCat(member.member.value, " is not ready");
    if (!member.current && !SaysWhy(member))
      return absl::StrCat(member.member.value, " is not at what is desired");
    if (std::string why = world.WhyNamesStay(member.member); !why.empty()) return why;
    any_ready = any_ready || member.pool == pool_name;
  }
  if (!any_ready) return "";
  for (const sync::PoolStatus& pool : status.pools) {
    if (pool.pool != pool_name) continue;
    if (std::string why = WhyNotAtNewest(world, pool); !why.empty()) return why;
  }
  return world.WhyWatchesHang();
}

}  // namespace lorry::sim
