// Retention: what each member should have and route, computed whole from decisions, aliases, leases
// and running syncs. Pure over the state; called after every step.
#pragma once

#include <set>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// The whole document for one member, without revision.
fleet::Desired BuildDesired(Core& core, const Member& member);

// Versions activated after `key` in the pool's lineage; kLagNone outside of it.
uint32_t LagOf(const Pool& pool, const VersionKey& key);

// Sends Desired where it differs from what was sent, or where an answer is overdue.
void AdvanceDesired(Core& core);

// Everything that is wanted, leased, waiting, being synced or decided: what the store must not
// delete.
void AdvanceHolds(Core& core);

// Whether the member's last answer reflects the last document sent to it, and all of it came true.
bool IsCurrent(const Member& member);

}  // namespace lorry::sync
