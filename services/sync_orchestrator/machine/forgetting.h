// Forgetting: verdicts and names of versions that nobody can ask for any more. A training run stores
// versions for as long as it likes, and each leaves both.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Forgets what the store has deleted once no sync, activation or lease names it.
void AdvanceForgetting(Core& core);

}  // namespace lorry::sync
