// Pauses of the engine: that it is paused is durable before the engine hears of it, and every one
// of them ends (docs/machines.md). Those that Lorry began end with the last row that needs it, by
// their deadline, the session's end, or this process's restart; rows that want the same pause at the
// same moment share it, another one waits for its turn, and which rows want one is `quiesce`'s.
// Those that a framework asked for are `framework_calls`'.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// One that an earlier process began is ended, as nobody knows any more what it was for; a framework's
// is kept, as the framework does.
void RestorePause(Core& core, const PausedRecord& record);

void HandlePauseDone(Core& core, const PauseDone& event);
void HandleResumeDone(Core& core, const ResumeDone& event);
void AdvancePause(Core& core);

// The engine is asked for a pause: none holds yet and nothing is at work in its registry, or a
// framework's does.
void BeginForFramework(Core& core, const PauseCall& call);
// And to go on from a framework's pause, or from one that is not known here.
void EndForFramework(Core& core);
// The time that a framework's pause may last begins anew.
void RenewFrameworkPause(Core& core);
bool IsRegistryQuiet(const Core& core);
bool IsHeldByFramework(const Core& core);
// Of a framework's pause: nothing of before it is left in the engine, and what has come since waits
// there for its end, and uses no adapter yet.
bool HasEndedAll(const Core& core);

// A pause holds, or may.
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
