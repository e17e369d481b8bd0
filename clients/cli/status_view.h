// The orchestrator's picture of the fleet as tables and as lines of change. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/output.h"
#include "lorry/sync/v1/sync.pb.h"

namespace lorry::cli {

using StatusMessage = lorry::sync::v1::GetStatusResponse;

// More engines than are listed one by one.
bool IsLarge(const StatusMessage& status);
// What each door serves and what is on its way there: engines down and adapters across where that
// fits into `columns`, otherwise a line for each engine and adapter that it has something of. In a
// large fleet engines in the same state share a line.
Table EnginesByAdapter(const StatusMessage& status, size_t columns);
// One line for each adapter and pool: the decision, the newest version, what runs or waits and why.
Table Pools(const StatusMessage& status);
// One line an engine: health, limits, load, address.
Table Engines(const StatusMessage& status);
// "e1 active; e2, e3 fetching; 12 engines loaded": where a version stands, empty when nobody says.
std::string Progress(const lorry::sync::v1::WatchSyncResponse& progress);
// Sentences that `lorry status` adds: the store is away, versions are poisoned, pools are pinned,
// engines have fewer slots than their adapters ask for, a pool has no engine while others have some.
std::vector<std::string> Warnings(const StatusMessage& status);
// "no engine is in pool rolout, only in rollout; did you mean rollout?": empty where one is, or where
// no engine is known at all. A pool may be named before its first engine comes.
std::string WhyNoEngine(const StatusMessage& status, const std::string& pool);

// What to say when the picture changed, one line each; everything where `before` is empty.
std::vector<std::string> Changes(const StatusMessage& before, const StatusMessage& after);

// "v12" of "policy-v12-0a1b2c3d4e5f"; the name itself where it has another form.
std::string ShortVersion(const std::string& engine_name, const std::string& adapter);

}  // namespace lorry::cli
