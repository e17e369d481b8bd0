// From the machine's status and watch values to the messages of lorry.sync.v1. Pure functions.
#pragma once

#include <map>
#include <string>

#include "lib/base/clock.h"
#include "lorry/sync/v1/sync.pb.h"
#include "services/sync_orchestrator/driver/ports.h"
#include "services/sync_orchestrator/machine/status.h"

namespace lorry::sync {

Contact ContactOf(const v1::Hello& hello);

v1::WatchSyncResponse ToProto(const WatchEvent& event, const PhaseTimes& times);

// Filters by pool and adapter where they are not empty.
v1::GetStatusResponse ToProto(const Status& status, const std::map<AdapterName, VersionKey>& newest,
                              const std::string& pool, const std::string& adapter, Tick now);

}  // namespace lorry::sync
