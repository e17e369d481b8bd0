// The doors of a sync in mode BARRIER. Once enough engines have the version, every door of the pool
// first keeps new requests waiting (HOLDING), then promises durably to admit none before it learns
// the decision (LOCKING): no request of the old version begins anywhere once one of the new was
// answered. Asked is every member of the pool that is not DEAD, whatever its engine does: its door
// may be answering.
#pragma once

#include <optional>
#include <string>

#include "services/sync_orchestrator/machine/state.h"
#include "services/sync_orchestrator/machine/visits.h"

namespace lorry::sync {

// The doors are asked to hold, or to lock: none has answered yet.
void AskDoors(Core& core, const PoolId& id, Pool& pool, SyncPhase phase);

// Counts what the doors of those that are visited answer.
void CountDoors(const Core& core, const PoolId& id, Pool& pool, const Visit& visit);

// What has become of the phase; none while doors are waited for, or engines that have the version
// and are away for a moment (not `enough`).
std::optional<SyncEvent> WhatDoorsDid(const Core& core, const Pool& pool, bool enough,
                                      int64_t deadline_ms);

// For people: members of the pool that nobody can ask, as they have no session; none if all have
// one. With `lost` only those that are away for longer than a restart takes.
std::string WhoIsUnreachable(const Core& core, const PoolId& id, bool lost);
// For people: whose doors the running barrier waits for; empty when nobody's.
std::string WhoIsWaitedFor(const Core& core, const Pool& pool);

}  // namespace lorry::sync
