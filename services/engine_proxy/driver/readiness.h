// Whether this engine is of use to whoever balances requests: what /readyz says.
//
// A rolling update replaces the next engine once this one is ready, so a newcomer is ready when it
// serves what it owes, and not before. Once it was, only its engine can take that back, for as long
// as it is away, or by a restart, after which it is a newcomer: an orchestrator that is away, or a
// later version that cannot be loaded, stops nobody from serving.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "lib/fleet/observed.h"
#include "services/engine_proxy/machine/door_table.h"

namespace lorry::proxy {

// One thread.
class Readiness {
 public:
  // OK, or UNAVAILABLE with what is waited for.
  absl::Status Judge(const fleet::Observed& observed, const DoorTable& table);

 private:
  std::optional<BootId> ready_boot_;  // the life of the engine in which it served what it owed
};

}  // namespace lorry::proxy
