// The planners, in their order, after every event.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void Plan(Core& core);

// What a look at everything would still do or see otherwise; empty when what has changed was all
// there was to look at. For tests: it costs as much as everything does.
std::string WhatWasMissed(const Core& core);

}  // namespace lorry::sync
