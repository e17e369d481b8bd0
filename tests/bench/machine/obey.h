// An engine and its proxy, as far as the orchestrator can tell: they do what they are told.
#pragma once

#include "lib/fleet/desired.h"
#include "lib/fleet/observed.h"

namespace lorry::sync {

// A barrier's row that admits nothing new: HELD or LOCKED.
bool IsShut(fleet::RowMode mode);
// One step towards what is desired, all adapters at once: fetched, loading, loaded, served. False:
// it was there already.
bool StepTowards(const fleet::Desired& desired, fleet::Observed& observed);

}  // namespace lorry::sync
