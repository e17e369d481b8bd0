// What the orchestrator and people are told.
#pragma once

#include <string>

#include "services/engine_proxy/machine/state.h"

namespace lorry::proxy {

fleet::Observed Observe(const Core& core);

// Sends Observed when something changed, or when the last one is old. Where only counts of requests
// or of bytes changed, that waits for the next report that is due anyway.
void AdvanceObserved(Core& core);

// Why the engine loads nothing now, for people; empty where nothing is known to keep it from that.
std::string EngineTrouble(const Core& core);

std::string Describe(const Core& core);

}  // namespace lorry::proxy
