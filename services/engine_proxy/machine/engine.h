// The engine as last seen: its boot, its list, its load. A new boot has lost everything that an
// earlier one had.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleSeen(Core& core, const EngineSeen& event);
void HandleLost(Core& core, const EngineLost& event);
void HandleListed(Core& core, const Listed& event);
void HandleEngineLoad(Core& core, const EngineLoadSeen& event);

// Asks for the list and for the engine's load where something waits for them.
void AdvanceEngine(Core& core);

}  // namespace lorry::proxy
