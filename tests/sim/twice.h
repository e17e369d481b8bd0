// Runs a seed, and one of eight twice: every invariant must hold, and both runs must be the same.
// Prints what a person needs when they do not. One thread.
#pragma once

#include <cstdint>

#include "tests/sim/coverage.h"

namespace lorry::sim {

struct Totals {
  uint64_t commits = 0;
  uint64_t aborts = 0;
  uint64_t steps = 0;  // of machines
  Coverage coverage;
};

// False when an invariant broke, or the runs of it differ; `verbose` prints the state at the end.
bool RunTwice(uint64_t seed, bool verbose, Totals& totals);

}  // namespace lorry::sim
