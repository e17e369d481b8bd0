// Makes a failing seed small: what the same rule breaks without is left out, fault by fault.
#pragma once

#include <cstdint>

namespace lorry::sim {

// Prints what is left, then the run as text. False when the seed does not fail.
bool Shrink(uint64_t seed);

}  // namespace lorry::sim
