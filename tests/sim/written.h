// Whether what a machine says it has decided is what its records say: whoever comes after it knows
// nothing else.
#pragma once

#include <string>

#include "services/engine_proxy/machine/machine.h"
#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sim {

// What differs; empty where nothing does. All that the machine has decided must be written down.
std::string WhyNotWritten(const sync::Status& status, const sync::Records& records);
std::string WhyNotWritten(const proxy::Machine& machine, const proxy::Records& journal);

}  // namespace lorry::sim
