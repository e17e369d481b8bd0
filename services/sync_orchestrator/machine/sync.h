// Syncs: one decision about `latest` of one (adapter, pool) at a time. Before the decision a sync
// can only be broken off, after it only go on; members learn of the decision from their Desired
// documents.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Moves the pool's sync to the phase that the table's row names, and writes that down.
void Stand(Core& core, const PoolId& id, Pool& pool, const SyncTransition& row);

// Drops members, decides running syncs and starts waiting ones. Called after every step; looks only
// at pools of which something changed or is due.
void AdvanceSyncs(Core& core);

// Whether the sync took its version out of the pool's queue, and puts it back when it is broken off.
bool IsFromQueue(const SyncRecord& sync);

void HandleOverride(Core& core, const OverrideSet& event);

}  // namespace lorry::sync
