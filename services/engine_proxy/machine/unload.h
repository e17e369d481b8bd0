// Leaving: who makes room, when an unload may be sent, when a directory may be removed. Never on a
// sync's path.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleUnloadDone(Core& core, const UnloadDone& event);

// An SGLang engine whose registry hangs; durable, until another boot.
void Wedge(Core& core, const EngineName& name);

// Chooses a MAY version to leave where a MUST has no slot, and sends at most one unload.
// Whether what the door may route has changed.
bool AdvanceUnloads(Core& core);

// Whether an unload waits for nothing but the engine's own load.
bool WaitsForQuiet(const Core& core);

// Removes the directory once the engine answers and lists neither the name nor the path.
void MaybeDelete(Core& core, Residency& residency);

// Whether it is on its way out: requests no longer resolve to it, except where a row stands on it.
bool IsLeaving(const Core& core, const Residency& residency);

}  // namespace lorry::proxy
