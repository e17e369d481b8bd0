// Runs seeds: each twice, and both runs must be the same. The first failure ends the program with
// its seed and state.
//
//   sim_tests --seed 42 | --seeds 1..3000 | --soak-seconds 600 [--first 1000000] | --kept FILE
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "tests/sim/swarm.h"

namespace {

uint64_t total_commits = 0;
uint64_t total_aborts = 0;

bool RunOne(uint64_t seed, bool verbose) {
  const lorry::sim::Result first = lorry::sim::RunSeed(seed);
  const lorry::sim::Result second = lorry::sim::RunSeed(seed);
  total_commits += first.commits;
  total_aborts += first.aborts;
  if (verbose || !first.violation.empty()) std::printf("%s", first.state.c_str());
  if (!first.violation.empty()) {
    std::printf("seed=%llu FAILED: %s\n", static_cast<unsigned long long>(seed),
                first.violation.c_str());
    return false;
  }
  if (first.hash != second.hash) {
    std::printf("seed=%llu FAILED: two runs differ\n", static_cast<unsigned long long>(seed));
    return false;
  }
  if (verbose) {
    std::printf("seed=%llu ok hash=%016llx commits=%llu aborts=%llu\n",
                static_cast<unsigned long long>(seed), static_cast<unsigned long long>(first.hash),
                static_cast<unsigned long long>(first.commits),
                static_cast<unsigned long long>(first.aborts));
  }
  return true;
}

int RunRange(uint64_t first, uint64_t last) {
  for (uint64_t seed = first; seed <= last; ++seed) {
    if (!RunOne(seed, false)) return 1;
  }
  std::printf("%llu seeds, each twice: every invariant held; %llu commits, %llu aborts\n",
              static_cast<unsigned long long>(last - first + 1),
              static_cast<unsigned long long>(total_commits),
              static_cast<unsigned long long>(total_aborts));
  return 0;
}

int RunSoak(uint64_t first, int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  uint64_t seed = first;
  while (std::chrono::steady_clock::now() < end) {
    if (!RunOne(seed++, false)) return 1;
  }
  std::printf("%llu seeds from %llu: every invariant held\n",
              static_cast<unsigned long long>(seed - first),
              static_cast<unsigned long long>(first));
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
  uint64_t soak_first = 1'000'000;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--first") soak_first = std::strtoull(value.c_str(), nullptr, 10);
    if (flag == "--seed") return RunOne(std::strtoull(value.c_str(), nullptr, 10), true) ? 0 : 1;
    if (flag == "--soak-seconds") return RunSoak(soak_first, std::atoi(value.c_str()));
    if (flag == "--kept") return RunKept(value);
    if (flag == "--seeds") {
      const size_t dots = value.find("..");
      if (dots == std::string::npos) break;
      return RunRange(std::strtoull(value.c_str(), nullptr, 10),
                      std::strtoull(value.c_str() + dots + 2, nullptr, 10));
    }
  }
  std::printf(
      "usage: sim_tests --seed N | --seeds A..B | --soak-seconds N [--first N] | --kept FILE\n");
  return 2;
}
