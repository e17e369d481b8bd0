// Unload: when one may be sent, and what becomes of one that hangs. No sync waits for an unload.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleUnloadDone(Core& core, const UnloadDone& event);

// An SGLang engine whose registry hangs; durable, until another boot.
void Wedge(Core& core, const EngineName& name);

// Asks again for an unload that an earlier process began, makes room where a MUST has none, and
// sends at most one unload. Whether what the door may route has changed.
bool AdvanceUnloads(Core& core);

// Whether it is to be unloaded as soon as it is idle: new requests no longer resolve to it, except
// where a row stands on it.
bool IsLeaving(const Core& core, const Residency& residency);

// Whether it is or may be in the engine, and nothing is under way for it.
bool IsOnEngine(const Core& core, const Residency& residency);

// Whether no request is on it, nor may be one that the door does not count.
bool IsIdle(const Core& core, const Residency& residency);

// An unload was sent, by this process or an earlier one, and its answer is not there.
bool IsUnloading(const Core& core);

// How long the unload of the name may still take.
int64_t UnloadTimeLeft(const Core& core, const EngineName& name);

}  // namespace lorry::proxy
