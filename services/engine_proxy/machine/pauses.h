// Pauses that Lorry began: "paused by us" is durable before the engine hears of it, and every one
// of them ends, by its deadline, the session's end, or this process's restart (docs/machines.md).
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// One that an earlier process began is ended: nobody knows any more what it was for.
void RestorePause(Core& core, const PausedRecord& record);

void HandlePauseDone(Core& core, const PauseDone& event);
void HandleResumeDone(Core& core, const ResumeDone& event);
void AdvancePause(Core& core);

// A pause of ours holds, or may.
bool IsPaused(const Core& core);
// The engine said that it holds.
bool IsPauseConfirmed(const Core& core);

std::optional<Tick> PauseWakeAt(const Core& core);

}  // namespace lorry::proxy
