#include "services/sync_orchestrator/machine/forgetting.h"

#include <algorithm>
#include <utility>

#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sync {
namespace {

void ForgetNames(Core& core, const VersionKey& key) {
  auto it = core.names.lower_bound({key, fleet::Render()});
  while (it != core.names.end() && it->first.first == key) {
    core.named.erase(it->second);
    it = core.names.erase(it);
  }
}

void Erase(Core& core, const PoolId& id, const Pool& pool) {
  core.Erase(PoolKey(id.adapter, id.pool));
  if (pool.sync.has_value()) core.Erase(SyncKey(id.adapter, id.pool));
  if (pool.decision.has_value()) core.Erase(DecisionKey(id.adapter, id.pool));
  if (!pool.requests.overrides.empty()) core.Erase(RequestsKey(id.adapter, id.pool));
  core.sync_due.Clear(id);
  core.without_slot.erase(id);
}

// Forgets what the adapter's pools have decided. Doors that are away may go on with that, so the
// floor of epochs is raised: whatever is decided for the next adapter of the name is later.
void ForgetPools(Core& core, const AdapterName& adapter) {
  DropFromDocuments(core, adapter);
  const Epoch before = core.meta.floor;
  auto it = core.pools.lower_bound({adapter, PoolName()});
  while (it != core.pools.end() && it->first.adapter == adapter) {
    const auto& [id, pool] = *it;
    core.meta.floor = std::max(core.meta.floor, Epoch(pool.record.epoch.value + 1));
    Erase(core, id, pool);
    it = core.pools.erase(it);
  }
  if (core.meta.floor != before) core.SaveQuietly(MetaKey(), core.meta);
  core.changed.Adapter(adapter);
}

}  // namespace

void AdvanceForgetting(Core& core) {
  // While records or store are lost, what seems to be gone may come back.
  if (core.footing != Footing::kSettled) return;
  for (const AdapterName& adapter : std::exchange(core.gone, {})) ForgetPools(core, adapter);
  std::erase_if(core.deleted, [&](const VersionKey& key) {
    if (core.FindVersion(key) != nullptr) return false;
    ForgetNames(core, key);
    if (core.verdicts.erase(key) > 0) {
      core.Erase(VerdictKey(key));
      core.changed.Adapter(key.adapter);
    }
    return true;
  });
}

}  // namespace lorry::sync
