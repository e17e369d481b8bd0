// Requests on the engine that this door does not count: those of an earlier process of this proxy,
// and those of clients that call the engine directly, to whom a name was leased.
//
// A name that may have some is not unloaded before the engine shows none, or their time is over.
// No other name waits for what the engine has to do: the door counts each request that it sent, and
// whoever calls the engine without a lease keeps nothing there.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// It is on the engine: unless this process put it there, others may have used it.
void FindOnEngine(const Core& core, Residency& residency);
// A new document says whether it is leased.
void MeetLease(Core& core, Residency& residency);
// This process loads it: from now on the door counts what comes to it. What is leased stays so.
void BeginCounting(const Core& core, Residency& residency);
// It is not on the engine. What is leased stays so.
void ForgetUncounted(Residency& residency);

// Whether requests may be on it now. A lease stays, and stands for none where the engine lists
// nothing of that name for its clients to call.
bool MayHaveUncounted(const Core& core, const Residency& residency);

void HandleOccupancy(Core& core, const OccupancySeen& event);

// Judges the engine's answer, and gives up on what has had its time.
void AdvanceUncounted(Core& core);
void AskOccupancyIfNeeded(Core& core);
std::optional<Tick> UncountedWakeAt(const Core& core);

}  // namespace lorry::proxy
