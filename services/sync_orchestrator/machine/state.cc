#include "services/sync_orchestrator/machine/state.h"

#include <algorithm>
#include <string>
#include <vector>

#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sync {

const SyncMember* SyncRecord::Find(const MemberId& member) const {
  const auto it = std::ranges::lower_bound(members, member, {}, &SyncMember::member);
  return it != members.end() && it->member == member ? &*it : nullptr;
}

Pool& Core::PoolOf(const PoolId& id) {
  const auto [it, is_new] = pools.try_emplace(id);
  if (is_new) {
    BeginAtFloor(it->second);
    changed.Pool(id);
  }
  return it->second;
}

void Core::BeginAtFloor(Pool& pool) const { pool.record.epoch = pool.record.began = meta.floor; }

void Core::SavePool(const PoolId& id, const Pool& pool) {
  Save(PoolKey(id.adapter, id.pool), pool.record);
}

void Core::SaveSync(const PoolId& id, const Pool& pool) {
  if (pool.sync.has_value()) {
    Save(SyncKey(id.adapter, id.pool), *pool.sync);
  } else {
    Erase(SyncKey(id.adapter, id.pool));
  }
}

const EngineName& Core::NameOf(const VersionInfo& version, fleet::EngineKind kind) {
  const fleet::Render render = fleet::RenderFor(kind, version.traits);
  const auto key = std::make_pair(version.key, render);
  auto it = names.find(key);
  if (it == names.end()) {
    it = names.emplace(key, fleet::MakeEngineName(version.key, version.digest, render)).first;
    named.emplace(it->second, version.key);
    // Nobody will say of one that is not stored that it is gone.
    if (!versions.contains(version.key)) deleted.insert(version.key);
  }
  return it->second;
}

const EngineName& Core::NameIn(const VersionInfo& version, fleet::EngineKind kind) const {
  const std::pair key(version.key, fleet::RenderFor(kind, version.traits));
  const auto known = names.find(key);
  if (known != names.end()) return known->second;
  MadeName& its = made[key];
  if (its.name.empty() || its.digest != version.digest)
    its = {version.digest, fleet::MakeEngineName(version.key, version.digest, key.second)};
  return its.name;
}

void Core::ForgetMade() {
  if (made.size() > kMadeLimit) made.clear();
}

const VersionInfo* Core::FindVersion(const VersionKey& key) const {
  const auto stored = versions.find(key);
  if (stored != versions.end()) return &stored->second;
  for (auto it = pools.lower_bound({key.adapter, PoolName()});
       it != pools.end() && it->first.adapter == key.adapter; ++it) {
    const Pool& pool = it->second;
    if (pool.sync.has_value() && pool.sync->version.key == key) return &pool.sync->version;
    for (const Activation& activation : pool.record.history) {
      if (activation.version.key == key) return &activation.version;
    }
  }
  for (const LeaseRecord* lease : LeasesBelow(LeaseKeyPrefix(key.adapter))) {
    if (lease->version.key == key) return &lease->version;
  }
  return nullptr;
}

std::vector<const LeaseRecord*> Core::LeasesOf(const PoolId& id) const {
  return LeasesBelow(LeaseKeyPrefix(id.adapter, id.pool));
}

std::vector<const LeaseRecord*> Core::LeasesBelow(const std::string& prefix) const {
  std::vector<const LeaseRecord*> found;
  for (auto it = leases.lower_bound(prefix); it != leases.end() && it->first.starts_with(prefix);
       ++it) {
    found.push_back(&it->second.record);
  }
  return found;
}

const AdapterInfo* Core::FindAdapter(const AdapterName& adapter) const {
  const auto it = adapters.find(adapter);
  return it != adapters.end() ? &it->second : nullptr;
}

const fleet::AdapterPolicy* Core::FindPolicy(const PoolId& id) const {
  const AdapterInfo* info = FindAdapter(id.adapter);
  return info != nullptr && info->policy.pools.contains(id.pool) ? &info->policy : nullptr;
}

int64_t Core::Backoff(uint32_t failures) const {
  constexpr uint32_t kDoublingsLimit = 20;  // beyond it retry_max_ms has long been reached
  const int64_t grown = config.retry_min_ms
                        << std::min(failures > 0 ? failures - 1 : 0, kDoublingsLimit);
  return std::min(grown, config.retry_max_ms);
}

SyncPhase PhaseOf(const Pool& pool) {
  if (!pool.sync.has_value()) return SyncPhase::kIdle;
  if (!pool.barrier.has_value()) return SyncPhase::kStaging;
  return pool.barrier->locks ? SyncPhase::kLocking : SyncPhase::kHolding;
}

}  // namespace lorry::sync
