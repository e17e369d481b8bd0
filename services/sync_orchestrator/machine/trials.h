// Trials: which member of a group of engines loads a version before the others do (a canary),
// whatever made the version wanted: a sync, an alias, a lease, or a newcomer that catches up. Once
// its engine has answered a token the version is PROVEN in the group. Where a canary is slow,
// another one tries beside it. A version costs a group Config::deaths_limit engines at most, dead
// or hung; tries that are under way count towards that, so that no more engines are ever at risk.
#pragma once

#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Whether a member may load a version that it should have: the one place that answers it.
enum class Permission {
  kLoad,
  kFetch,  // another member tries first
  kNo,     // a verdict says so
};
// `verdict`: of the version on engines of the member's group.
Permission PermissionOf(const Core& core, const Member& member, const VersionInfo& version,
                        const GroupVerdict& verdict);

// For people: which engines try it while the member may only fetch it.
std::string WhoTries(const Core& core, const Member& member, const VersionKey& version);

// Ends tries that are over, and chooses who tries next.
void AdvanceTrials(Core& core);

}  // namespace lorry::sync
