// How members of the simulated fleet leave its roster.
#include <algorithm>

#include "tests/sim/world.h"

namespace lorry::sim {

// With OK it answers a goodbye, whose record is written: also where its process did not wait for that.
void World::End(const sync::EndSession& effect) {
  const Session& session = sessions_.at(effect.session);
  SimProxy& proxy = *proxies_.at(session.member);
  const bool is_back = std::ranges::any_of(sessions_, [&](const auto& entry) {
    const auto& [id, other] = entry;
    return id != effect.session && other.open && other.member == session.member;
  });
  // In one turn it may be forgotten and come back, of which no record tells.
  if (effect.status.ok()) answers_.Forgotten(session.member);
  if (effect.status.ok() && proxy.life() == session.life && !is_back) {
    left_.insert(session.member);
    proxy.GoodbyeTaken();
  }
  Break(effect.session);
}

// Whether no barrier asks the doors of the pool, as far as a leader can have heard.
bool World::MayForgetLost(const PoolName& pool) const {
  constexpr int64_t kOnItsWayMs = 15'000;  // a policy
  const auto asks = [&](const fleet::AdapterPolicy& policy) {
    return policy.mode == fleet::SyncMode::kBarrier && policy.pools.contains(pool);
  };
  return std::ranges::none_of(store_.adapters(), [&](const auto& adapter) {
    return std::ranges::all_of(store_.PoliciesSince(adapter.first, sim_.now() - kOnItsWayMs), asks);
  });
}

}  // namespace lorry::sim
