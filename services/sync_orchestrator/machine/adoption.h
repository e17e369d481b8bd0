// What the orchestrator remembers of the fleet, against what the store and the members remember of
// it. Where one of them has lost its memory nothing is sent, decided, retired or released, however
// long it lasts, until that memory is there again or an operator has what is left adopted.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// A member says that it follows a later reign than this one, or stands on a later decision than any
// in the records: they were lost. (A leader that was deposed finds out as it writes this.)
void LoseRecords(Core& core);

void HandleAdopted(Core& core, const FleetAdopted& event);
// First of the planners: the others go by Core::footing.
void AdvanceAdoption(Core& core);

}  // namespace lorry::sync
