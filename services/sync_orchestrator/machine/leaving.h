// How members leave the roster. One that says goodbye leaves at once, as its door is closed by
// then. One that is LOST or DEAD for long is forgotten, or earlier where there is no room, but not
// one that is LOST in a pool with barriers: its door may still be answering, so that it has to be
// asked, or an operator says that it is DEAD.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

bool IsForgotten(const Core& core, const Member& member);

// What verdicts count of it stays with the versions: one that comes back reports it again.
void Forget(Core& core, const MemberId& id);

// Whether one more member fits. A full roster forgets a member that may be forgotten, the one that
// has been away the longest first.
bool MakeRoom(Core& core);

// To be called when a member reports. A goodbye belongs to the session in which it is said: a
// member that attaches anew without one stays.
void NoteGoodbye(Core& core, const Member& member);

// Takes members off the roster that said goodbye, and answers them once that is written down. While
// the orchestrator's records may be lost they wait, as what their doors know may have to be
// adopted.
void TakeGoodbyes(Core& core);

}  // namespace lorry::sync
