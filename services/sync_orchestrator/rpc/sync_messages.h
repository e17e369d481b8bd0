// From the machine's status and watch values to the messages of lorry.sync.v1. Pure functions.
#pragma once

#include <map>
#include <string>

#include "lib/base/clock.h"
#include "lorry/sync/v1/sync.pb.h"
#include "services/sync_orchestrator/driver/ports.h"
#include "services/sync_orchestrator/machine/status.h"

namespace lorry::sync {

// What a session said of itself beside its Observed document.
struct MemberContact {
  std::string door_address;
  std::string admin_address;
  std::string admin_tls_name;
  std::string lorry_version;
  Tick heard_at = 0;
};

v1::WatchSyncResponse ToProto(const WatchEvent& event, const PhaseTimes& times);

// Filters by pool and adapter where they are not empty.
v1::GetStatusResponse ToProto(const Status& status,
                              const std::map<MemberId, MemberContact>& contacts,
                              const std::map<AdapterName, VersionKey>& newest,
                              const std::string& pool, const std::string& adapter, Tick now);

}  // namespace lorry::sync
