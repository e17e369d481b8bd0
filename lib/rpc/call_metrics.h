// How long gRPC calls took and how they ended, as a metric. The registry outlives the gate that is
// given the result.
#pragma once

#include <functional>

#include "lib/metrics/registry.h"
#include "lib/rpc/gate.h"

namespace lorry::rpc {

// For Gate::Options::on_call: observes lorry_rpc_seconds{method, code}. Thread-safe.
std::function<void(const CallReport&)> CallMetrics(metrics::Registry& registry);

}  // namespace lorry::rpc
