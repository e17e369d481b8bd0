// Which members of a running sync may load its version: one member per (engine kind, engine
// version, config) tries first and answers a token; the others fetch meanwhile. A slow one gets
// another beside it.
#pragma once

#include <set>
#include <string>

#include "services/sync_orchestrator/machine/state.h"

namespace lorry::sync {

// Members that would meet the same fate: engine kind, engine version, and the limits its flags set.
std::string CanaryGroupOf(const Member& member);

std::set<MemberId> MembersThatLoad(Core& core, const PoolId& id);

uint32_t DeathsOn(const Core& core, const VersionKey& version, const MemberId& member);

// Whether an engine of this sync ended while it loaded or probed the version, since the sync began.
bool EngineDiedOfIt(const Core& core, const Pool& pool);

Tick NextCanaryAt(const Core& core, const Pool& pool, int64_t stage_deadline_ms);

}  // namespace lorry::sync
