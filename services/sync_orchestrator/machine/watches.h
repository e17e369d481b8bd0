// WatchSync: what became of one version in one pool, told to whoever asked until it is final.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleWatchOpened(Core& core, const WatchOpened& event);
void HandleWatchClosed(Core& core, const WatchClosed& event);

// Tells each watch what changed for it. A decision is told at once, and so is that all members
// serve it; what else members report is told ten times a second at most.
void AdvanceWatches(Core& core);

// Whether the two differ in nothing but how far members are.
bool SaysTheSame(const WatchEvent& a, const WatchEvent& b);

// What a watch of `version` in `pool` would be told now.
WatchEvent ViewOf(const Core& core, const VersionKey& version, const PoolName& pool);

}  // namespace lorry::sync
