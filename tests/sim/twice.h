// Runs a seed, some of them twice: every invariant must hold, and both runs must be the same.
// Prints what a person needs when they do not. One thread.
#pragma once

#include <cstdint>

namespace lorry::sim {

struct Totals {
  uint64_t commits = 0;
  uint64_t aborts = 0;
};

// Of a range each eighth seed runs twice: that runs do not differ is a property of the code more
// than of the seed, and the time finds more in other seeds.
inline constexpr uint64_t kTwiceEvery = 8;

// False when an invariant broke, or the runs of it differ; `verbose` prints the state at the end.
bool RunChecked(uint64_t seed, bool twice, bool verbose, Totals& totals);

}  // namespace lorry::sim
