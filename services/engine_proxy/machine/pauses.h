// Pauses that Lorry began: "paused by us" is durable before the engine hears of it, and every one
// of them ends, by its deadline, the session's end, or this process's restart.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandlePauseDone(Core& core, const PauseDone& event);
void HandleResumeDone(Core& core, const ResumeDone& event);
void AdvancePause(Core& core);
std::optional<Tick> PauseWakeAt(const Core& core);

}  // namespace lorry::proxy
