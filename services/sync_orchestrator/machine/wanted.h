// What should be where: what one member should have and route, computed from decisions, aliases,
// leases and running syncs alone. Pure over the state; sends nothing.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// The whole document for one member, without revision.
fleet::Desired BuildDesired(Core& core, const Member& member);

// Versions activated after `key` in the pool's lineage; kLagNone outside of it.
uint32_t LagOf(const Pool& pool, const VersionKey& key);

}  // namespace lorry::sync
