// Memory that frameworks have the engine release, and weights that they give it: the engine's own
// calls, passed on as they came once nothing is at work that they would harm (docs/SEMANTICS.md
// §9).
//
// Whoever released the memory has it in use, so the proxy never wakes an engine by itself. What was
// released is durable: SGLang does not tell it, and ends when it is asked to release the same part
// twice. If a call gets no answer, nobody knows whether SGLang has released what the call named,
// and to ask it for either state could end it: only a new life of the engine ends that doubt. While
// any memory is released, and while weights change, nothing is loaded, probed or unloaded, but for
// what IsAsleepWithWeights allows. What was loaded before is believed once it has been probed
// afterwards, and is loaded again where the probe fails.
#pragma once

#include <cstdint>
#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Begins a framework's call. True: it has its answer, or the engine is being asked for it; false:
// it has to wait, and is to be tried again.
bool Take(Core& core, uint64_t ticket, const ReleaseCall& call);
bool Take(Core& core, uint64_t ticket, const WakeCall& call);
bool Take(Core& core, uint64_t ticket, const WeightsCall& call);
void HandlePassDone(Core& core, const PassDone& event);

// Whether the engine is being asked for such a call, or is about to be: nothing else may begin
// there.
bool IsPassing(const Core& core);
// For the door: whether it may admit nothing, as memory is released, or as weights change, or as a
// call for that waits for what runs.
bool IsAsleepOrToBe(const Core& core);
bool IsUpdatingOrTo(const Core& core);
// Whether the engine sleeps but has its weights back, so that adapters can be loaded and unloaded.
// They have to be: a framework may wait for an adapter of its own before it takes the rest of the
// memory.
bool IsAsleepWithWeights(const Core& core);

// Whether a call waits until the engine was seen to have no requests.
bool IsRestAwaited(const Core& core);
// How many requests the engine says that it has.
void HandleSaidOccupancy(Core& core, const OccupancySeen& seen);
void AdvanceMemory(Core& core);
std::optional<Tick> MemoryWakeAt(const Core& core);

// Whether the engine says that it is asleep.
void HandleSaidAsleep(Core& core, const EngineSeen& seen);
// To be called when the engine begins a new life, in which it has all of its memory.
void ForgetMemory(Core& core, const BootId& boot);
// What has the engine rest, or will have once what runs has ended; empty where nothing does.
std::string RestDetail(const Core& core);

}  // namespace lorry::proxy
