// A small deterministic generator (splitmix64), passed explicitly: the same seed gives the same run
// on every compiler. No floats, so that a simulation's trace never depends on rounding.
#pragma once

#include <cstdint>

#include "lib/base/check.h"

namespace lorry {

class Prng {
 public:
  explicit Prng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound).
  uint64_t Below(uint64_t bound) {
    LORRY_CHECK(bound > 0);
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  // True in `per_mille` of 1000 calls.
  bool Chance(uint64_t per_mille) { return Below(1000) < per_mille; }

 private:
  uint64_t state_;
};

}  // namespace lorry
