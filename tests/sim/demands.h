// What the fleet must reach once nothing disturbs it any more, and what it may say instead.
#pragma once

#include <string>

#include "tests/sim/world.h"

namespace lorry::sim {

// Whether the orchestrator reports a reason for which nothing may be decided.
bool SaysWhyNothingMoves(World& world);

// Every slot is promised: to versions that MUST be there, and one to those that are loaded on demand,
// which the row of one of them may hold with an older version; where rows of several do, each holds
// one.
bool IsOvercommitted(World& world, SimProxy& proxy);

// Whether the member has a reason for not having loaded this version, says so of this version, and
// it is true.
bool HasReason(World& world, SimProxy& proxy, const VersionKey& key);

// 13: requests of every adapter that is loaded on demand, all at once, begin within their wait.
void AskForAll(World& world, int64_t wait_ms);

// 13: frameworks that have taken back the weights of their engines, and wait for adapters of their own
// before they take the rest, get those.
void AskForOwn(World& world);

// What is not yet as it must be, and no reason for it is reported that is true; empty when all is.
std::string WhyUnsettled(World& world, const PoolName& pool);

}  // namespace lorry::sim
