#include "tests/sim/looks.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lorry::sim {
namespace {

constexpr int64_t kOnItsWayMs = 15'000;  // a policy
constexpr int64_t kSecond = 1'000, kSecondsALook = 4;

}  // namespace

// What is planted not to be written is to be found by what comes of it.
void Looks::AtRecords(const std::string& who, const std::string& unwritten) {
  if (!unwritten.empty() && sim_.plant == Plant::kNone)
    sim_.oracle.Violate(0, absl::StrCat(who, " has not written down ", unwritten));
}

// Not each second, as it looks at everything that each proxy says.
void Looks::AtProxies() {
  if (sim_.now() / kSecond % kSecondsALook != 0) return;
  for (const auto& [member, proxy] : world_.proxies()) {
    AtRecords(member.value, proxy->WhyNotWritten());
    const std::string said = sim_.plant == Plant::kNone ? proxy->WhyNotSo() : "";
    if (!said.empty()) sim_.oracle.Violate(13, absl::StrCat(member.value, " says ", said));
  }
}

// A member is current where it has what it was told to have.
void Looks::AtCurrent(const sync::MemberStatus& said) {
  if (!said.current) return;
  const fleet::Desired& desired = world_.desired(said.member);
  const auto has_row = [&](const fleet::DesiredRow& row) {
    const auto has =
        std::ranges::find(said.observed.rows, row.adapter, &fleet::ObservedRow::adapter);
    return has != said.observed.rows.end() && has->mode == row.mode &&
           (row.mode != fleet::RowMode::kOpen ||
            (has->epoch == row.epoch && has->target == row.target));
  };
  const auto has_loaded = [&](const fleet::WantedVersion& wanted) {
    if (!wanted.must || !wanted.load) return true;
    const auto has =
        std::ranges::find(said.observed.residencies, wanted.name, &fleet::ObservedResidency::name);
    return has != said.observed.residencies.end() && has->state == fleet::ResidencyState::kLoaded;
  };
  // A newer document than what the member was judged by may be on its way.
  if (desired.revision != said.observed.revision || desired.term != said.observed.term) return;
  if (!std::ranges::all_of(desired.rows, has_row) ||
      !std::ranges::all_of(desired.wanted, has_loaded))
    sim_.oracle.Violate(13, said.member.value + " is said to be current, and is not");
}

// Why what waits in a pool does not begin: somebody says it, and it may be so.
std::string Looks::WhyWaitIsNotSo(const sync::Status& status, const sync::PoolStatus& pool) const {
  const std::string& why = pool.waits_for;
  if (pool.sync.has_value()) return "";
  const auto policies = world_.store().PoliciesSince(pool.adapter, sim_.now() - kOnItsWayMs);
  const bool is_published = std::ranges::all_of(policies, [&](const auto& policy) {
    const auto source = policy.pools.find(pool.pool);
    return source != policy.pools.end() &&
           source->second.kind == fleet::PoolSource::Kind::kPublished;
  });
  if (why.empty())
    return is_published && !pool.pending.empty() && status.store_known ? "nobody says why" : "";
  const bool explains = why != "HOLD_PENDING" && why != "MEMBERS_ATTACHING";
  if (explains && pool.detail.empty()) return why + ", and not for what";
  if (why == "OVERRIDDEN" && !pool.override_to.has_value()) return "for a pin that is not there";
  const bool was_broken_off = pool.last_decision.has_value() && !pool.last_decision->commit;
  if (why == "RETRY_LATER" && !was_broken_off) return "for another try of what was not broken off";
  if (why == "REFUSED" || why == "POISONED" || why == "STALLS_ENGINES") {
    const bool is_there = std::ranges::any_of(status.verdicts, [&](const auto& said) {
      return said.version.adapter == pool.adapter && sync::ToString(said.verdict) == why;
    });
    if (!is_there) return why + ", and there is no such verdict";
  }
  std::vector<const sync::MemberStatus*> members;
  for (const sync::MemberStatus& member : status.members) {
    if (member.pool == pool.pool && member.standing != sync::MemberStanding::kDead)
      members.push_back(&member);
  }
  if (why == "NO_SLOT" && std::ranges::none_of(members, [](const auto* member) {
        return member->observed.limits.slots != 0;
      }))
    return "for a slot, and every engine has enough";
  const bool is_attached = std::ranges::all_of(members, [](const auto* member) {
    return member->standing != sync::MemberStanding::kLost &&
           member->standing != sync::MemberStanding::kJoining;
  });
  const auto is_barrier = [](const auto& policy) {
    return policy.mode == fleet::SyncMode::kBarrier;
  };
  if (why == "MEMBER_UNREACHABLE" && (is_attached || std::ranges::none_of(policies, is_barrier)))
    return "for a door that it need not wait for";
  return "";
}

// What a watch was told last is what status says.
void Looks::AtWatches(const sync::Status& status) {
  using State = sync::WatchEvent::State;
  for (const sync::PoolStatus& pool : status.pools) {
    if (!pool.sync.has_value()) continue;
    for (const sync::WatchEvent& told : world_.ToldOf(pool.sync->version.key, pool.pool)) {
      const State is = pool.phase == sync::SyncPhase::kLocking   ? State::kLocking
                       : pool.phase == sync::SyncPhase::kHolding ? State::kHolding
                                                                 : State::kStaging;
      const bool is_about_it = told.state == State::kStaging || told.state == State::kHolding ||
                               told.state == State::kLocking;
      if (is_about_it && told.state != is)
        sim_.oracle.Violate(14, absl::StrCat("the watch of ", ToString(pool.sync->version.key),
                                             " does not tell how far its sync is"));
    }
  }
}

void Looks::At(const SimLeader& leader, const sync::Status& status) {
  AtRecords("the leader", leader.WhyNotWritten(status));
  sim_.oracle.KnowsLeases(status.leases);
  world_.answers().Says(status.members);
  if (leader.IsAtRest() && sim_.plant == Plant::kNone) {
    for (const sync::MemberStatus& said : status.members) AtCurrent(said);
    for (const sync::PoolStatus& pool : status.pools) {
      const std::string why = WhyWaitIsNotSo(status, pool);
      if (!why.empty())
        sim_.oracle.Violate(
            13, absl::StrCat(pool.adapter.value, " waits in ", pool.pool.value, ": ", why));
    }
    if (status.footing == sync::Footing::kSettled) AtWatches(status);
  }
  world_.answers().SaysLeases(status.leases);
  for (const sync::MemberStatus& said : status.members) {
    if (world_.HasLeft(said.member))
      sim_.oracle.Violate(13, said.member.value + " is waited for after its goodbye");
  }
  for (const sync::VerdictStatus& said : status.verdicts) {
    if (said.verdict == sync::Verdict::kPoisoned) sim_.lives.SaidToKill(said.version);
    if (said.verdict == sync::Verdict::kRefused) sim_.lives.SaidToBeRefused(said.version);
  }
}

}  // namespace lorry::sim
