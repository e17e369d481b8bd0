// Fetching: how a version's files come to be here, proven and compared with the base model, and
// when they may be removed.
#pragma once

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

void HandleFetchProgress(Core& core, const FetchProgress& event);
void HandleFetchDone(Core& core, const FetchDone& event);
void HandleFetchFailed(Core& core, const FetchFailed& event);
void HandleFetchCancelled(Core& core, const FetchCancelled& event);
void HandleHashed(Core& core, const DirectoryHashed& event);
void HandleShapes(Core& core, const ShapesChecked& event);
void HandleDeleted(Core& core, const DirectoryDeleted& event);

// Of one that is ABSENT, where `fetches` are under way.
bool MayFetch(const Core& core, const Residency& residency, uint32_t fetches);

// Of one that is FETCHED and not wanted, or broken: whether nobody can open its files any more.
bool MayDelete(const Core& core, const Residency& residency);

// Whether its shapes are known to be, or known not to be, those of the base model that the engine
// serves now.
bool Fits(const Core& core, const Residency& residency);
bool IsMisfit(const Core& core, const Residency& residency);

}  // namespace lorry::proxy
