// Memory that frameworks have the engine release, and weights that they give it: the engine's own
// calls, passed on as they came once nothing is at work that they would harm (docs/SEMANTICS.md §9).
//
// Who released the memory has it in use: the proxy never wakes an engine by itself, and what was
// released is durable, as SGLang tells nobody and ends of a call that asks for it twice. What a call
// named that has no answer is in doubt, and no call of SGLang's for it would be harmless both ways:
// another life of the engine ends the doubt, and nothing else. While any of it is released, and while
// weights change, nothing is loaded, probed or unloaded; what was loaded before is believed once it
// has been probed afterwards, and loaded again where it fails.
#pragma once

#include <cstdint>
#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Whether the call is over, or the engine is being asked for it; otherwise it waits.
bool Take(Core& core, uint64_t ticket, const ReleaseCall& call);
bool Take(Core& core, uint64_t ticket, const WakeCall& call);
bool Take(Core& core, uint64_t ticket, const WeightsCall& call);
void HandlePassDone(Core& core, const PassDone& event);

// The engine is asked for such a call, or is to be: nothing else may begin there.
bool IsPassing(const Core& core);
// For the door: nothing is to be admitted, as memory is released, or weights change.
bool IsAsleepOrToBe(const Core& core);
bool IsUpdatingOrTo(const Core& core);
// It sleeps, and its adapters can be moved all the same: a framework that took the weights again may
// wait for one of its own before it takes the rest, and for what makes room for that.
bool IsAsleepWithWeights(const Core& core);

// Whether a call waits until the engine is seen at rest, and what the engine says of that.
bool IsRestAwaited(const Core& core);
void HandleSaidOccupancy(Core& core, const OccupancySeen& seen);
void AdvanceMemory(Core& core);
std::optional<Tick> MemoryWakeAt(const Core& core);

// What the engine says of itself.
void HandleSaidAsleep(Core& core, const EngineSeen& seen);
// Another life of the engine has all of its memory.
void ForgetMemory(Core& core, const BootId& boot);
std::string AsleepDetail(const Core& core);

}  // namespace lorry::proxy
