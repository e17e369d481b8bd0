// The doors of a sync in mode BARRIER. Once enough engines have the version, every door of the pool
// first keeps new requests waiting (HOLDING), then promises durably to admit none before it learns
// the decision (LOCKING): no request of the old version begins anywhere once one of the new was
// answered. Every member of the pool is asked that is not DEAD, whatever its engine does, as its
// door may be answering.
#pragma once

#include <optional>
#include <string>

#include "services/sync_orchestrator/machine/state.h"
#include "services/sync_orchestrator/machine/visits.h"

namespace lorry::sync {

// Has the doors asked to hold, or to lock; none counts as having answered yet.
void AskDoors(Core& core, const PoolId& id, Pool& pool, SyncPhase phase);

// Counts what the doors of the visited members answer.
void CountDoors(const Core& core, const PoolId& id, Pool& pool, const Visit& visit);

// What ends the phase; none while doors are waited for, or, where not `enough` engines have the
// version, those that have it and are away for a moment.
std::optional<SyncEvent> WhatDoorsDid(const Core& core, const Pool& pool, bool enough,
                                      int64_t deadline_ms);

// For people: members of the pool that nobody can ask, as they have no session; none if all have
// one. With `lost` only those that are away for longer than a restart takes.
std::string WhoIsUnreachable(const Core& core, const PoolId& id, bool lost);
// For people: whose doors the running barrier waits for; empty when nobody's.
std::string WhoIsWaitedFor(const Core& core, const Pool& pool);

}  // namespace lorry::sync
