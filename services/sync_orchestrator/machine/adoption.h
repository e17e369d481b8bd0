// Beginning over empty records: a fleet may remember what they held. Nothing is sent, decided or
// retired until it is settled which: the store is empty, no member remembers another incarnation,
// or an operator adopts what they report.
#pragma once

#include <optional>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleAdopted(Core& core, const FleetAdopted& event);
void AdvanceAdoption(Core& core);
bool AdoptionNeeded(const Core& core);
std::optional<Tick> AdoptionWakeAt(const Core& core);

}  // namespace lorry::sync
