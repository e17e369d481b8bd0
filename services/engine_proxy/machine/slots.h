// Slots of the engine's registry: how they are counted, who gets one, who leaves for whom, and
// when NO_SLOT is said.
#pragma once

#include <optional>
#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// How many slots are taken, by Lorry's adapters and by others.
uint32_t SlotsUsed(const Core& core);

// Whether the version may be loaded into one now.
bool IsSlotFree(const Core& core, const Residency& residency);

// Whether a MUST waits for its turn: the last one to be loaded was a MUST, requests wait for
// something else, and a slot comes free for that without waiting for any request to end.
bool LetsOthersFirst(const Core& core, const Residency& residency);

// Sets NO_SLOT on a FETCHED version for which no unload could make room, and clears it otherwise.
void SaySlot(const Core& core, Residency& residency);

// Chooses who leaves where something that is to be loaded now has no slot, and lets those stay
// whose slot nobody needs any more. Whether what the door may route has changed.
bool MakeRoom(Core& core);

// For people: the names that hold a slot.
std::string WhoHoldsSlots(const Core& core);

// When one more adapter in use has to give way, should nobody be idle before.
std::optional<Tick> SlotWakeAt(const Core& core);

}  // namespace lorry::proxy
