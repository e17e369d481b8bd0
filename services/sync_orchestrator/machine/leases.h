// Leases: promises with a time to live. A version under one stays stored, and loaded on every READY
// member of its pool.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleLeaseAsked(Core& core, const LeaseAsked& event);

// Ends leases whose time is over. Their records are gone before Desired or holds stop naming them:
// records of a Ready are durable before its effects.
void AdvanceLeases(Core& core);

}  // namespace lorry::sync
