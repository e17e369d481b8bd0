// Builds the door's table from rows and residencies, and takes the door's report.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleReport(Core& core, const DoorReport& event);

// Emits a new table where it differs from the last, and notes which names and rows it shuts.
void AdvanceDoor(Core& core);

}  // namespace lorry::proxy
