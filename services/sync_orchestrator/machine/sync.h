// Syncs: one decision about `latest` of one (adapter, pool) at a time. Before the decision only
// abort, after it only forward; delivering it is what Desired does. Called after every step, over
// what has changed.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// The pool's sync stands where the row says, and that is written down.
void Stand(Core& core, const PoolId& id, Pool& pool, const SyncTransition& row);

// Drops members, decides running syncs, starts waiting ones, where something changed or is due.
void AdvanceSyncs(Core& core);

void HandleOverride(Core& core, const OverrideSet& event);

}  // namespace lorry::sync
