// Compares what the orchestrator remembers of the fleet with what the store and the members
// remember of it. Where the orchestrator or the store has lost its memory nothing is sent, decided,
// retired or released, however long that lasts, until the memory is back or an operator has what is
// left adopted.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// A member says that it follows a later reign than this one, or stands on a later decision than any
// in the records: they were lost. (A leader that was deposed finds out as it writes this.)
void LoseRecords(Core& core);

void HandleAdopted(Core& core, const FleetAdopted& event);
// Runs before the other Advance... functions, which go by the Core::footing that it sets.
void AdvanceAdoption(Core& core);

}  // namespace lorry::sync
