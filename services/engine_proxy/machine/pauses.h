// Pauses that Lorry began: "paused by us" is durable before the engine hears of it, and every one
// of them ends: with the last row that needs it, by its deadline, the session's end, or this
// process's restart (docs/machines.md). Rows that want the same pause at the same moment share it;
// another one waits for its turn. Which rows want one is `quiesce`'s.
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
// Nothing may begin in the engine's registry: a pause holds, or one is to begin once what is at work
// there has ended.
bool IsPausedOrToBe(const Core& core);
// It is over, and the engine has not said yet that it goes on.
bool IsResuming(const Core& core);
// The engine said that it holds, and it was begun after that row was shut for the epoch.
bool IsPausedFor(const Core& core, const AdapterName& adapter, Epoch epoch);

std::optional<Tick> PauseWakeAt(const Core& core);

}  // namespace lorry::proxy
