// Runs fresh seeds until stopped, or for so long. The first failure ends the program with its seed
// and state.
//
//   sim_soak [--seconds=N] [--first=N]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/sim/twice.h"

namespace {

constexpr uint64_t kReportEvery = 1'000;  // seeds

// Other seeds each second, far beyond those that tests run: an hour of soaking is never the last
// hour again.
uint64_t FreshSeed() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count()) *
         kReportEvery;
}

int Soak(uint64_t first, int64_t seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  lorry::sim::Totals totals;
  uint64_t done = 0;
  while (seconds <= 0 || std::chrono::steady_clock::now() < end) {
    if (!lorry::sim::RunTwice(first + done, false, totals)) return 1;
    if (++done % kReportEvery != 0) continue;
    std::printf("%llu seeds\n", static_cast<unsigned long long>(done));
    std::fflush(stdout);
  }
  std::printf("%llu seeds from %llu: every invariant held; %llu commits, %llu aborts\n",
              static_cast<unsigned long long>(done), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(totals.commits),
              static_cast<unsigned long long>(totals.aborts));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr std::string_view kSeconds = "--seconds=";
  constexpr std::string_view kFirst = "--first=";
  uint64_t first = FreshSeed();
  int64_t seconds = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag.starts_with(kSeconds)) {
      seconds = std::strtoll(argv[i] + kSeconds.size(), nullptr, 10);
    } else if (flag.starts_with(kFirst)) {
      first = std::strtoull(argv[i] + kFirst.size(), nullptr, 10);
    } else {
      std::printf("usage: sim_soak [--seconds=N] [--first=N]\n");
      return 2;
    }
  }
  return Soak(first, seconds);
}
