// Clients and operators of the simulated world, and what they may expect of it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/sim/demands.h"
#include "tests/sim/world.h"

namespace lorry::sim {

void World::NoteLease(const AskedLease& asked, const sync::Reply& reply) {
  if (asked.ask.ttl_ms <= 0 || !reply.status.ok()) return;
  Tick until = asked.at + asked.ask.ttl_ms;
  // What the holder has asked since may have happened already.
  for (auto it = leases_asked_.upper_bound(reply.request); it != leases_asked_.end(); ++it) {
    const auto& [later, at] = it->second;
    if (later.holder == asked.ask.holder && MayName(later.selector, reply.resolved.version.key))
      until = std::min(until, at + std::max<int64_t>(later.ttl_ms, 0));
  }
  sim_.oracle.Leased(reply.resolved.version.key, asked.ask.holder, until);
}

void World::Mark(const sync::MemberMarked& mark) {
  if (mark.mark == sync::MemberMark::kIncluded) {
    taken_back_[mark.request] = mark.member;
  } else {
    sim_.lives.PutAside(mark.member.value);
  }
  Call(mark, mark.request);
}

sync::RequestId World::Call(sync::Event event, sync::RequestId request) {
  sim_.oracle.Called(request);
  sim_.queue.In(1, [this, event = std::move(event), request] {
    SimLeader* current = leader();
    if (current == nullptr) return;
    if (const auto* lease = std::get_if<sync::LeaseAsked>(&event)) {
      // A release ends everything of the holder's that it names, and a renewal may shorten: whether
      // it happened nobody knows before the answer.
      sim_.oracle.LeaseInDoubt(lease->selector, lease->holder,
                               sim_.now() + std::max<int64_t>(lease->ttl_ms, 0));
      leases_asked_[request] = {*lease, sim_.now()};
    }
    answers_.Asked(event);
    current->Post(event);
  });
  return request;
}

sync::WatchId World::Watch(const VersionKey& version, const PoolName& pool) {
  const sync::WatchId watch = ++last_watch_;
  watched_[watch].version = version;
  watched_[watch].pool = pool;
  sim_.queue.In(1, [this, watch, version, pool] {
    SimLeader* current = leader();
    if (current == nullptr) return;
    watched_[watch].leader = current->id();
    answers_.Watched(watch, version, pool);
    current->Post(sync::WatchOpened{watch, version, pool});
  });
  return watch;
}

void World::CloseWatch(sync::WatchId watch) {
  Watched& watched = watched_[watch];
  watched.is_closed = true;
  if (SimLeader* asked = Find(watched.leader)) asked->Post(sync::WatchClosed{watch});
}

std::vector<sync::WatchEvent> World::ToldOf(const VersionKey& version, const PoolName& pool) const {
  std::vector<sync::WatchEvent> told;
  for (const auto& [id, watched] : watched_) {
    const bool is_open = watched.leader == current_leader_ && watched.was_told &&
                         !watched.is_closed && !watched.answer.final;
    if (is_open && watched.version == version && watched.pool == pool)
      told.push_back(watched.answer);
  }
  return told;
}

std::string World::WhyNamesStay(const MemberId& member) {
  const fleet::Desired& desired = desired_[member];
  const fleet::Observed observed = proxy(member.value).machine().Observe();
  const bool is_full = IsOvercommitted(*this, proxy(member.value));
  // What cannot come, for want of a slot or as the engine does not take it, leaves its row on what
  // it had.
  const auto stands = [&](const fleet::ObservedRow& row) {
    if (is_full) return true;
    const auto told = std::ranges::find(desired.rows, row.adapter, &fleet::DesiredRow::adapter);
    if (told == desired.rows.end()) return false;
    const auto target =
        std::ranges::find(desired.wanted, told->target, &fleet::WantedVersion::name);
    return target != desired.wanted.end() && HasReason(*this, proxy(member.value), target->key);
  };
  const std::vector<proxy::DoorBinding>& bindings =
      proxy(member.value).machine().door_table().bindings;
  for (const fleet::ObservedResidency& has : observed.residencies) {
    const bool stays = std::none_of(desired.wanted.begin(), desired.wanted.end(),
                                    [&](const auto& version) { return version.name == has.name; });
    const bool has_row = std::ranges::any_of(observed.rows, [&](const fleet::ObservedRow& row) {
      return row.target == has.name && stands(row);
    });
    const bool is_bound = std::ranges::count(bindings, has.name, &proxy::DoorBinding::target) > 0;
    if (stays && !is_bound && !has_row)
      return absl::StrCat(member.value, " keeps ", has.name.value);
  }
  return "";
}

std::string World::WhyWatchesHang() {
  for (const auto& [watch, watched] : watched_) {
    const sync::WatchEvent& answer = watched.answer;
    if (watched.leader != current_leader_ || answer.final || watched.is_closed) continue;
    // For as long as the pool has too few engines for what waits, and says so.
    if (answer.reason == "TOO_FEW_ENGINES") continue;
    // Likewise where what must be loaded fills an engine.
    const bool is_full = std::ranges::any_of(
        proxies_, [&](const auto& entry) { return IsOvercommitted(*this, *entry.second); });
    if (answer.reason == "NO_SLOT" && is_full) continue;
    return absl::StrCat("the watch of ", lorry::ToString(watched.version),
                        " has no end: ", watched.note, ", ", answer.detail);
  }
  return "";
}

std::string World::Describe() {
  std::string text = leader() != nullptr ? leader()->machine().Describe() : "no leader\n";
  for (const auto& [member, proxy] : proxies_) absl::StrAppend(&text, proxy->Describe(), "\n");
  return text;
}

}  // namespace lorry::sim
