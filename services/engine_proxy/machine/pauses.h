// Pauses of the engine (docs/machines.md). A pause is on disk before the engine hears of it, and
// every pause ends. One that Lorry began ends with the last row that needs it, by its deadline,
// with the session, or by a restart of this process. Rows that want the same pause at the same
// moment share it; a pause of another kind waits for its turn. quiesce.h says which rows want one,
// framework_calls.h what frameworks ask for.
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

// Takes over a pause that an earlier process began. One of Lorry's is ended, as nobody knows any
// more what it was for; a framework's is kept, as the framework counts on it.
void RestorePause(Core& core, const PausedRecord& record);

void HandlePauseDone(Core& core, const PauseDone& event);
void HandleResumeDone(Core& core, const ResumeDone& event);
// True: it has begun or is over, which rows and the door's table follow.
bool AdvancePause(Core& core);
// Ends a pause of an engine's earlier boot.
void ForgetPause(Core& core);

// Asks the engine for a framework's pause. The caller has seen that no pause holds and that nothing
// is at work in the engine's registry, or that a framework's pause holds already.
void BeginForFramework(Core& core, const PauseCall& call);
// Asks the engine to go on from a framework's pause, or from one that is not known here.
void EndForFramework(Core& core);
// Has the time for which a framework's pause may last begin anew.
void RenewFrameworkPause(Core& core);
bool IsRegistryQuiet(const Core& core);
bool IsHeldByFramework(const Core& core);
// Whether a framework's pause has ended all requests from before it, so that the engine has only
// some that came since. Those wait there for its end, and use no adapter yet.
bool HasEndedAll(const Core& core);

// Whether a pause holds, or may hold.
bool IsPaused(const Core& core);
// Whether nothing may begin in the engine's registry, as a pause holds, or one is to begin once
// what is at work there has ended.
bool IsPausedOrToBe(const Core& core);
// Whether the pause is over, and the engine has not said yet that it goes on.
bool IsResuming(const Core& core);
// Whether the engine has said that a pause holds that was begun after this row was shut for the
// epoch.
bool IsPausedFor(const Core& core, const AdapterName& adapter, Epoch epoch);

std::optional<Tick> PauseWakeAt(const Core& core);

}  // namespace lorry::proxy
