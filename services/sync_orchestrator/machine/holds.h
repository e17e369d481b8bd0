// Holds: what the store must not delete, as one set that is sent whole to the store.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Finds what is wanted, leased, waiting, being synced or decided, and sends the store the set where
// it changed.
void AdvanceHolds(Core& core);

}  // namespace lorry::sync
