// Forgetting: verdicts and names of versions, and decisions for adapters, that nobody can ask for
// any more. Without it the records would grow for ever, as training runs go on storing versions and
// adapters come and go.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Forgets the pools of adapters that the store has deleted or archived, and versions that it has
// deleted where no sync, activation or lease names them.
void AdvanceForgetting(Core& core);

}  // namespace lorry::sync
