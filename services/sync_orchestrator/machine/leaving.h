// How members leave the roster. One that says goodbye leaves at once, as its door is closed by then.
// One that is LOST or DEAD for long is forgotten, or earlier where there is no room, but not one that
// is LOST in a pool with barriers: its door may still be answering, so that it has to be asked, or an
// operator says that it is DEAD.
#pragma once

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

bool IsForgotten(const Core& core, const Member& member);

// What verdicts count of it stays with the versions: one that comes back reports it again.
void Forget(Core& core, const MemberId& id);

// Whether one more member fits: a full roster forgets whoever it may, first who is away the longest.
bool MakeRoom(Core& core);

// A goodbye belongs to the session in which it is said: who attaches anew without one stays.
void NoteGoodbye(Core& core, const Member& member);

// Lets go who said goodbye, and answers once that is written down. Over records that may not be the
// last they wait: what their doors know may have to be adopted.
void TakeGoodbyes(Core& core);

}  // namespace lorry::sync
