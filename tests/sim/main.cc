// Runs seeds, some of them twice: both runs must be the same. The first failure ends the program
// with its seed and state.
//
//   sim_tests --seed 42 | --trace 42 | --shrink 42 | --seeds 1..3000 | --sweep 1..3000 | --kept FILE
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/sim/shrink.h"
#include "tests/sim/swarm.h"
#include "tests/sim/twice.h"

namespace {

lorry::sim::Totals totals;

bool RunOne(uint64_t seed, bool verbose) { return lorry::sim::RunTwice(seed, verbose, totals); }

// Once, with everything that happens.
int Trace(uint64_t seed) {
  const lorry::sim::Result result = lorry::sim::RunSeed({.seed = seed, .narrates = true});
  std::printf("%s%s\n", result.state.c_str(), result.violation.c_str());
  return result.violation.empty() ? 0 : 1;
}

int RunRange(uint64_t first, uint64_t last) {
  const std::clock_t began = std::clock();
  for (uint64_t seed = first; seed <= last; ++seed) {
    if (!lorry::sim::RunTwice(seed, false, totals)) return 1;
  }
  totals.coverage.Print();
  const double seconds = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  std::printf("%llu seeds: every invariant held; %llu commits, %llu aborts; %.0f steps a second\n",
              static_cast<unsigned long long>(last - first + 1),
              static_cast<unsigned long long>(totals.commits),
              static_cast<unsigned long long>(totals.aborts),
              static_cast<double>(totals.steps) / seconds);
  return 0;
}

// On past failures, a line each: how often which invariant breaks.
int Sweep(uint64_t first, uint64_t last) {
  uint64_t failed = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    const lorry::sim::Result result = lorry::sim::RunSeed({seed});
    if (result.violation.empty()) continue;
    ++failed;
    std::printf("seed=%llu %s\n", static_cast<unsigned long long>(seed), result.violation.c_str());
    std::fflush(stdout);
  }
  std::printf("%llu of %llu seeds failed\n", static_cast<unsigned long long>(failed),
              static_cast<unsigned long long>(last - first + 1));
  return failed == 0 ? 0 : 1;
}

int ShrinkOne(uint64_t seed) {
  if (lorry::sim::Shrink(seed)) return 1;
  std::printf("seed=%llu does not fail\n", static_cast<unsigned long long>(seed));
  return 0;
}

// Lines of "<seed> <a sentence>"; '#' begins a comment.
int RunKept(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    std::printf("cannot read %s\n", path.c_str());
    return 1;
  }
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (!RunOne(std::strtoull(line.c_str(), nullptr, 10), false)) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--seed") return RunOne(std::strtoull(value.c_str(), nullptr, 10), true) ? 0 : 1;
    if (flag == "--trace") return Trace(std::strtoull(value.c_str(), nullptr, 10));
    if (flag == "--kept") return RunKept(value);
    if (flag == "--shrink") return ShrinkOne(std::strtoull(value.c_str(), nullptr, 10));
    if (flag == "--seeds" || flag == "--sweep") {
      const size_t dots = value.find("..");
      if (dots == std::string::npos) break;
      const uint64_t first = std::strtoull(value.c_str(), nullptr, 10);
      const uint64_t last = std::strtoull(value.c_str() + dots + 2, nullptr, 10);
      return flag == "--seeds" ? RunRange(first, last) : Sweep(first, last);
    }
  }
  std::printf(
      "usage: sim_tests --seed N | --trace N | --shrink N | --seeds A..B | --sweep A..B | "
      "--kept FILE\n");
  return 2;
}
