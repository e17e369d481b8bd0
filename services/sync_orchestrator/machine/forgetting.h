// Forgetting: verdicts and names of versions, and decisions for adapters, that nobody can ask for
// any more. A training run stores versions for as long as it likes, and a fleet sees adapters come
// and go: each leaves some.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Forgets the pools of adapters that the store has deleted or archived; and of versions that it has
// deleted what no sync, activation or lease names.
void AdvanceForgetting(Core& core);

}  // namespace lorry::sync
