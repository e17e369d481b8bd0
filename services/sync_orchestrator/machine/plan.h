// The planners: the Advance... functions of this folder, which run in one order after every event.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void Plan(Core& core);

// What the planners would still change if they looked at everything, and not only at what changed
// since; empty: nothing. For tests, as it takes as long as everything does.
std::string WhatWasMissed(const Core& core);

}  // namespace lorry::sync
