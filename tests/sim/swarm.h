// One seed's run: it draws a fleet, faults and a workload, lets them happen, then heals everything
// and demands that the fleet reaches what is desired.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/coverage.h"
#include "tests/sim/draw.h"

namespace lorry::sim {

struct Result {
  uint64_t hash = 0;
  std::string violation;  // empty when every invariant held
  std::string state;      // one line per pool and member, at the end
  uint64_t commits = 0;
  uint64_t aborts = 0;
  uint64_t steps = 0;  // of machines
  Coverage coverage;
};

struct Plan {
  uint64_t seed = 0;
  Plant plant = Plant::kNone;
  bool narrates = false;
  Without without = {};
};
Result RunSeed(const Plan& plan);

}  // namespace lorry::sim
