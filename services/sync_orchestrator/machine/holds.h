// Holds: what the store must not delete, as one set that is sent whole to the store.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Everything that is wanted, leased, waiting, being synced or decided: what the store must not
// delete.
void AdvanceHolds(Core& core);

}  // namespace lorry::sync
