#include "tests/sim/twice.h"

#include <cstdio>

#include "tests/sim/swarm.h"

namespace lorry::sim {

bool RunTwice(uint64_t seed, bool verbose, Totals& totals) {
  const auto number = static_cast<unsigned long long>(seed);
  const Result first = RunSeed(seed);
  const uint64_t second_hash = RunSeed(seed).hash;
  totals.commits += first.commits;
  totals.aborts += first.aborts;
  if (verbose || !first.violation.empty()) std::printf("%s", first.state.c_str());
  if (!first.violation.empty()) {
    std::printf("seed=%llu FAILED: %s\n", number, first.violation.c_str());
    return false;
  }
  if (first.hash != second_hash) {
    std::printf("seed=%llu FAILED: two runs differ\n", number);
    return false;
  }
  if (verbose) {
    std::printf("seed=%llu ok hash=%016llx commits=%llu aborts=%llu\n", number,
                static_cast<unsigned long long>(first.hash),
                static_cast<unsigned long long>(first.commits),
                static_cast<unsigned long long>(first.aborts));
  }
  return true;
}

}  // namespace lorry::sim
