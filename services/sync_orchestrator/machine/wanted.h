// What should be where: what one member should have and route of one adapter, computed from
// decisions, aliases, leases and running syncs alone. Pure over the state; sends nothing.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// The adapter's policy puts it into the member's pool, and the member has reported.
DesiredPart PartOf(Core& core, const Member& member, const AdapterInfo& info);

// Versions activated after `key` in the pool's lineage; kLagNone outside of it.
uint32_t LagOf(const Pool& pool, const VersionKey& key);

}  // namespace lorry::sync
