// The roster: members, their sessions and standing. A member that is away stays on it until an
// operator says DEAD.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleSessionOpened(Core& core, const SessionOpened& event);
void HandleSessionLost(Core& core, const SessionLost& event);
void HandleObserved(Core& core, const MemberObserved& event);
void HandleMarked(Core& core, const MemberMarked& event);

// Counts engine deaths that the member reports for names this reign has made; others are counted
// when it makes them.
void CountDeaths(Core& core, const Member& member);

// Lifts exclusions whose backoff ended.
void AdvanceRoster(Core& core);

MemberStanding StandingOf(const Core& core, const Member& member);
std::string StandingReason(const Core& core, const Member& member);

// What it has of `name` on the boot it last reported; null when nothing.
const fleet::ObservedResidency* ResidencyOf(const Member& member, const EngineName& name);
const fleet::ObservedRow* RowOf(const Member& member, const AdapterName& adapter);
bool IsLoaded(const Member& member, const EngineName& name);

}  // namespace lorry::sync
