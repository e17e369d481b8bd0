// How far the members of a pool are with one version, for watches and status.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// One member of a pool, and what it reports of one version: found once for all that is said of it.
struct Sight {
  const Member* member;
  const EngineName* name = nullptr;  // of the version there
  const fleet::ObservedResidency* residency = nullptr;
  const fleet::ObservedRow* row = nullptr;
};

// Of all members that are not DEAD, by their names.
struct Sights {
  std::map<fleet::EngineKind, EngineName> names;
  std::vector<Sight> members;
};
bool HasLoaded(const Sight& sight);

Sights Look(const Core& core, const PoolId& id, const VersionInfo& version);
// Null when it is not one of them.
const Sight* Find(const Sights& sights, const MemberId& member);

// How far each of them is.
std::vector<MemberProgress> ProgressOf(const Core& core, const PoolId& id,
                                       const VersionInfo& version, const Sights& sights);

// For people: what holds the running sync up, and who takes no part in it any more; empty when
// nobody does.
std::string TroublesOf(const Core& core, const Pool& pool, const Sights& sights);

}  // namespace lorry::sync
