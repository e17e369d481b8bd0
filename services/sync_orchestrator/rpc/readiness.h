// Whether the orchestrator can decide anything: what /readyz says.
#pragma once

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "services/sync_orchestrator/driver/orchestrator.h"
#include "services/sync_orchestrator/rpc/store_link.h"

namespace lorry::sync {

// UNAVAILABLE where the store's watch is not open, or where the machine does not answer by then, as
// it does nothing else while it cannot write its records.
absl::Status IsReady(Orchestrator& orchestrator, const StoreLink& store, Tick deadline);

}  // namespace lorry::sync
