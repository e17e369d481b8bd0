// Residencies: where each engine name stands on this boot, and what is done next for it
// (docs/SEMANTICS.md §1, §6).
#pragma once

#include <optional>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleFetchProgress(Core& core, const FetchProgress& event);
void HandleFetchDone(Core& core, const FetchDone& event);
void HandleFetchFailed(Core& core, const FetchFailed& event);
void HandleFetchCancelled(Core& core, const FetchCancelled& event);
void HandleHashed(Core& core, const DirectoryHashed& event);
void HandleShapes(Core& core, const ShapesChecked& event);
void HandleDeleted(Core& core, const DirectoryDeleted& event);
void HandleLoadDone(Core& core, const LoadDone& event);
void HandleProbeDone(Core& core, const ProbeDone& event);

// After a listing: what vanished is fetched again, what an earlier life left behind gets a
// residency, loads that ended are judged.
void AdoptListing(Core& core);

// Gives every wanted version its residency, and each residency what Desired says of it.
void MeetDesired(Core& core);

// Meets Desired where that is due, begins what can be begun, and forgets what is gone.
void AdvanceResidencies(Core& core);

// Whether something about the name cannot be decided before the engine has been listed.
bool WaitsForList(const Core& core, const Residency& residency);

// Slots of the engine's registry that are taken, ours and others'.
uint32_t SlotsUsed(const Core& core);
bool RegistryBusy(const Core& core);

// Whether a load of it got no answer on this boot, and may yet happen.
bool IsUncertain(const Core& core, const Residency& residency);
// After the answer, or its absence, to a load or unload.
void NoteAnswer(Core& core, Residency& residency, Outcome outcome);

void Fail(Core& core, Residency& residency, fleet::Failure failure, std::string reason,
          std::string detail);

std::optional<Tick> ResidencyWakeAt(const Core& core);

}  // namespace lorry::proxy
