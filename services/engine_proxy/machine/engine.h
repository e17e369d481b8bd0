// The engine as last seen: its boot and its list. A new boot has lost everything that an
// earlier one had.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleSeen(Core& core, const EngineSeen& event);
void HandleLost(Core& core, const EngineLost& event);
void HandleListed(Core& core, const Listed& event);

// Asks for the list where something waits for it.
void AdvanceEngine(Core& core);

}  // namespace lorry::proxy
