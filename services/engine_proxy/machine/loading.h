// Loading: how a FETCHED version comes to be LOADED, which is to be listed at our path and to have
// answered.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleLoadDone(Core& core, const LoadDone& event);
void HandleProbeDone(Core& core, const ProbeDone& event);

// Of one that is FETCHED, proven, and of the engine's base model: loads or probes it where that
// may be begun.
void AdvanceToLoad(Core& core, Residency& residency);

// After a listing: what vanished is loaded again, what an earlier life left behind gets a
// residency, loads that ended are judged.
void AdoptListing(Core& core);

// The engine answered, on the same boot: it is judged whether it outlived what broke off.
void JudgeDoubts(Core& core);

// Whether a load of it got no answer on this boot, and may yet happen.
bool IsUncertain(const Core& core, const Residency& residency);
// Whether the engine may yet read its directory on this boot for such a load, though the name may
// have been listed since.
bool MayBeRead(const Core& core, const Residency& residency);
// After the answer, or its absence, to a load or unload.
void NoteAnswer(Core& core, Residency& residency, Outcome outcome);

}  // namespace lorry::proxy
