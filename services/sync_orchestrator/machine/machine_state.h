// Gives Machine its inside. Private to the folder.
#pragma once

#include "services/sync_orchestrator/machine/machine.h"
#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

struct Machine::State : Core {};

}  // namespace lorry::sync
