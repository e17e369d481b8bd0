// What the driver's effects end in: the RPC layer implements these, tests too. Methods are called
// on the driver's thread, must not block, and may be called after the other side has gone.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "lib/fleet/desired.h"
#include "services/sync_orchestrator/machine/effects.h"

namespace lorry::sync {

// One Attach stream.
class MemberSession {
 public:
  virtual ~MemberSession() = default;
  virtual void SendDesired(const fleet::Desired& desired) = 0;  // latest wins
  virtual void End(const absl::Status& status) = 0;
};

// One WatchSync stream. `times` are complete as far as the phase is.
struct PhaseTimes {
  int64_t wait_ms = 0;
  int64_t stage_ms = 0;
  int64_t commit_ms = 0;
  int64_t activate_ms = 0;
};
class SyncWatcher {
 public:
  virtual ~SyncWatcher() = default;
  // The last one has event.final set.
  virtual void OnWatch(const WatchEvent& event, const PhaseTimes& times) = 0;
};

// The store, as far as the orchestrator changes it. Answered by HoldsAcked; what is lost is sent
// again.
class HoldsPort {
 public:
  virtual ~HoldsPort() = default;
  virtual void SetHolds(HoldsMark mark, std::vector<VersionKey> versions) = 0;
};

}  // namespace lorry::sync
