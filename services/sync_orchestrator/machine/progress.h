// How far the members of a pool are with one version, for watches and status.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// One member of a pool, and what it reports of one version: looked up once, for all who tell it.
struct Sight {
  const Member* member;
  const EngineName* name = nullptr;  // the version's on that kind of engine
  const fleet::ObservedResidency* residency = nullptr;
  const fleet::ObservedRow* row = nullptr;
};

// All members that are not DEAD, in the order of their names.
struct Sights {
  std::map<fleet::EngineKind, EngineName> names;  // the version's, on each kind of engine
  std::vector<Sight> members;
};
bool HasLoaded(const Sight& sight);

Sights Look(const Core& core, const PoolId& id, const VersionInfo& version);
// Null when it is not one of them.
const Sight* Find(const Sights& sights, const MemberId& member);

// The same for people and tools: how far each member is.
std::vector<MemberProgress> ProgressOf(const Core& core, const PoolId& id,
                                       const VersionInfo& version, const Sights& sights);

// For people: what holds the running sync up, and who takes no part in it any more; empty when
// nobody does.
std::string TroublesOf(const Core& core, const Pool& pool, const Sights& sights);

}  // namespace lorry::sync
