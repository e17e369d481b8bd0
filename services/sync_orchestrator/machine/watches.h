// WatchSync: what became of one version in one pool, told to whoever asked until it is final.
#pragma once

#include <optional>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleWatchOpened(Core& core, const WatchOpened& event);

// Tells each watch what changed for it.
void AdvanceWatches(Core& core);

std::optional<Tick> WatchWakeAt(const Core& core);

// How far each member of the pool is with `version`.
std::vector<MemberProgress> ProgressOf(const Core& core, const PoolId& id,
                                       const VersionInfo& version);

// What a watch of `version` in `pool` would be told now.
WatchEvent ViewOf(Core& core, const VersionKey& version, const PoolName& pool);

}  // namespace lorry::sync
