// Requests on the engine that this door does not count: those of an earlier process of this proxy,
// and those of clients that call the engine directly, to whom a name was leased.
//
// A name that may have some is not unloaded before the engine shows none, or their time is over.
// No other name waits for what the engine has to do: the door counts each request that it sent, and
// whoever calls the engine without a lease keeps nothing there.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// To be called when a name was found on the engine: unless this process loaded it there, others may
// have requests on it.
void FindOnEngine(const Core& core, Residency& residency);
// To be called when a new document says whether it is leased.
void MeetLease(Core& core, Residency& residency);
// To be called when this process loads it: from now on the door counts all requests to it, unless
// it is leased.
void BeginCounting(const Core& core, Residency& residency);
// To be called when it is not on the engine any more. What is leased stays leased.
void ForgetUncounted(Residency& residency);

// Whether requests that the door does not count may be on it now. There are none of a lease's
// holders while the engine does not list the name.
bool MayHaveUncounted(const Core& core, const Residency& residency);

void HandleOccupancy(Core& core, const OccupancySeen& event);

// Judges what the engine answered, and no longer waits for names whose time is over.
void AdvanceUncounted(Core& core);
void AskOccupancyIfNeeded(Core& core);
std::optional<Tick> UncountedWakeAt(const Core& core);

}  // namespace lorry::proxy
