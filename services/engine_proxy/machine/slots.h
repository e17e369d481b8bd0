// Slots of the engine's registry: how they are counted, who gets one, who leaves for whom, and
// when NO_SLOT is said.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Taken, by ours and others'.
uint32_t SlotsUsed(const Core& core);

// Whether the version may be loaded into one now.
bool IsSlotFree(const Core& core, const Residency& residency);

// Says NO_SLOT of a FETCHED one while no version would make room, whatever is unloaded.
void SaySlot(const Core& core, Residency& residency);

// Chooses a MAY version to leave where a MUST has no slot. Whether it chose one.
bool MakeRoom(Core& core);

}  // namespace lorry::proxy
