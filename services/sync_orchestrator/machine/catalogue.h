// What the store said: adapters, versions, aliases, and which stored versions wait for a sync in
// which pool.
#pragma once

#include "absl/status/status.h"
#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleListed(Core& core, const StoreListed& event);
void HandleAdapterSet(Core& core, const AdapterSet& event);
void HandleAdapterDeleted(Core& core, const AdapterDeleted& event);
void HandleStored(Core& core, const VersionStored& event);
void HandleDeleted(Core& core, const VersionDeleted& event);
void HandleAliasSet(Core& core, const AliasSet& event);
void HandleHoldsAcked(Core& core, const HoldsAcked& event);

// Makes the pools that policies name, and queues what was stored since.
void AdvanceCatalogue(Core& core);

// NOT_FOUND UNKNOWN_ADAPTER or UNKNOWN_POOL: why the adapter has no such pool, and what there is.
absl::Status NoPool(const Core& core, const PoolId& id);

// The newest stored version of the adapter's current run; null when there is none.
const VersionInfo* NewestOf(const Core& core, const AdapterName& adapter);

}  // namespace lorry::sync
