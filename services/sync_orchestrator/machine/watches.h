// WatchSync: what became of one version in one pool, told to whoever asked until it is final.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleWatchOpened(Core& core, const WatchOpened& event);
void HandleWatchClosed(Core& core, const WatchClosed& event);

// Tells each watch what changed for it. What is decided is told at once, and so is that all members
// serve it; what members else change is told at a pace.
void AdvanceWatches(Core& core);

// Whether they differ in nothing but how far members are.
bool SaysTheSame(const WatchEvent& a, const WatchEvent& b);

// What a watch of `version` in `pool` would be told now.
WatchEvent ViewOf(const Core& core, const VersionKey& version, const PoolName& pool);

}  // namespace lorry::sync
