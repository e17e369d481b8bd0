#include "tests/sim/twice.h"

#include <cstdio>

#include "tests/sim/swarm.h"

namespace lorry::sim {
namespace {

constexpr uint64_t kTwiceOf = 8;

}  // namespace

bool RunTwice(uint64_t seed, bool verbose, Totals& totals) {
  const auto number = static_cast<unsigned long long>(seed);
  const Result first = RunSeed({seed});
  const bool again = verbose || seed % kTwiceOf == 0;
  const uint64_t second_hash = again ? RunSeed({seed}).hash : first.hash;
  totals.steps += again ? 2 * first.steps : first.steps;
  totals.commits += first.commits;
  totals.aborts += first.aborts;
  totals.coverage.Add(first.coverage);
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
