// The roster: members, their sessions and standing. leaving.h says how members leave it.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

void HandleSessionOpened(Core& core, SessionOpened event);
void HandleSessionLost(Core& core, const SessionLost& event);
void HandleObserved(Core& core, MemberObserved event);
void HandleMarked(Core& core, const MemberMarked& event);

// To be called when the member's standing may have changed: has it looked at, now and again when
// time alone may change it.
void NoteStanding(Core& core, const Member& member);

// Lets members go that said goodbye, forgets failures that are over and members that were away for
// long enough, and notices that the roster is gathered.
void AdvanceRoster(Core& core);

// Puts the member among those of its pool and group, whose engines take or refuse the same
// versions; an empty group takes it out.
void Place(Core& core, Member& member, const EngineGroup& group);

// EXCLUDED for a while, longer with each time in a row: it failed what others have loaded. `words`
// are for people.
void Exclude(Core& core, Member& member, const EngineName& name, const std::string& words);

// Whether syncs may begin after a restart, so that none begins with whoever happens to attach
// first. True once every member of the roster has attached or is LOST, or GatheredAt has come; then
// it stays true for the rest of the reign.
bool IsGathered(const Core& core);
Tick GatheredAt(const Core& core);  // at the latest
// Whether its session has ended, or has not begun in this reign yet, and is likely to come (back).
bool IsExpected(const Core& core, const Member& member);

// The rules for a member's standing: the first that holds says what it is (docs/machines.md).
struct StandingRule {
  std::string_view when;
  bool (*holds)(const Core&, const Member&);
  MemberStanding standing;
};
std::span<const StandingRule> StandingRules();
MemberStanding StandingOf(const Core& core, const Member& member);
std::string StandingReason(const Core& core, const Member& member);

// Whether it counts among those of which `min_engines` asks a share: READY, or restarting an engine
// that was, and able to come to rest as the policy asks.
bool IsCounted(const Core& core, const Member& member, const fleet::AdapterPolicy& policy);

// Whether it can be asked to load the version: READY, or EXCLUDED for what it failed of others.
bool CanBeAsked(const Core& core, const Member& member, const VersionInfo& version);

// Lives of its engine that ended with the version on trial, as it reports them.
uint32_t DeathsOf(const Core& core, const Member& member, const VersionInfo& version);

// What the member last reported of a name, or of a version; null where it reported nothing of it.
const fleet::ObservedResidency* ResidencyIn(const fleet::Observed& observed,
                                            const EngineName& name);
const fleet::ObservedResidency* ResidencyOf(const Member& member, const EngineName& name);
const fleet::ObservedResidency* ResidencyOf(const Core& core, const Member& member,
                                            const VersionInfo& version);
// Why it is FAILED, in the member's words.
std::string WordsOf(const fleet::ObservedResidency& residency);
const fleet::ObservedRow* RowOf(const Member& member, const AdapterName& adapter);
bool IsLoaded(const Member& member, const EngineName& name);

}  // namespace lorry::sync
