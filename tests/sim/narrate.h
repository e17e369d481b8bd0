// What happens in a run, one line each, for people: `sim_tests --trace SEED`. Silent unless the
// simulation narrates.
#pragma once

#include <string>

#include "services/engine_proxy/machine/machine.h"
#include "services/sync_orchestrator/machine/machine.h"
#include "tests/sim/sim.h"

namespace lorry::sim {

void Narrate(const Sim& sim, const std::string& who, const std::string& what);
void Narrate(const Sim& sim, const std::string& who, const proxy::Event& event);
void Narrate(const Sim& sim, const std::string& who, const proxy::Effect& effect);
void Narrate(const Sim& sim, const std::string& who, const proxy::Record& record);
void Narrate(const Sim& sim, const std::string& who, const sync::Event& event);
void Narrate(const Sim& sim, const std::string& who, const sync::Effect& effect);
void Narrate(const Sim& sim, const std::string& who, const sync::Record& record);

}  // namespace lorry::sim
