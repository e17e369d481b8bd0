// Calls of frameworks that know nothing of Lorry, for the engine as a whole (docs/SEMANTICS.md §9):
// one after the other, in the order in which they came.
//
// A framework's pause and Lorry's own exclude each other: each waits until the engine goes on after
// the other. A framework's lasts until the framework lets the engine go on, or for
// Config::framework_pause_ms, also over restarts of this process; no row and no session ends it.
#pragma once

#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleCall(Core& core, const CallMade& event);
void HandleCallLeft(Core& core, const CallLeft& event);
// Takes the calls whose turn has come. True: there was one.
bool AdvanceCalls(Core& core);

// Tells callers what came of their calls in this step. Their answers follow the door's table, as
// whoever is told that the engine has its memory back sends requests at once.
void AnswerCalls(Core& core);

// Whether some call waits for the engine's registry to be quiet, so that nothing new may begin
// there.
bool IsRestAsked(const Core& core);
void AnswerNow(Core& core, uint64_t ticket, Outcome outcome, std::string reason,
               std::string detail);
// What became of the call that the engine was asked for, if its caller still waits.
void AnswerServed(Core& core, Outcome outcome, std::string reason, std::string detail);

}  // namespace lorry::proxy
