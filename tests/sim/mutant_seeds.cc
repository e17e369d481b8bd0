// What tools/mutants runs the simulator by. A seed is run once here, since a mutant that differs
// from run to run differs from the original too.
//
//   mutant_seeds --reach A..B FILE       without a mutant: which numbers each seed reaches
//   mutant_seeds --judge SEEDS MS        under LORRY_MUTANT, seeds like 1,2,7: exit status 1 and a
//                                        line "SEED why" at the first that fails or takes MS of CPU
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/swarm.h"
#include "tools/mutants/runtime.h"

namespace {

using lorry::mutants::kMutantsMax;
using lorry::mutants::reached;

uint64_t ParseNumber(std::string_view text) {
  return std::strtoull(std::string(text).c_str(), nullptr, 10);
}

double CpuMs() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// --- which seeds could notice which mutants

// A line "NUMBER seed,seed,..." for each that is reached. Seeds that fail without a mutant say
// nothing about mutants, and are left out.
int Reach(uint64_t first, uint64_t last, const char* path) {
  std::map<int, std::string> seeds_of;
  double slowest_ms = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    for (auto& one : reached) one.store(0, std::memory_order_relaxed);
    const double began = CpuMs();
    const lorry::sim::Result result = lorry::sim::RunSeed({seed});
    slowest_ms = std::max(slowest_ms, CpuMs() - began);
    if (!result.violation.empty()) {
      std::printf("failing %s\n", std::to_string(seed).c_str());
      continue;
    }
    for (int id = 0; id < kMutantsMax; ++id) {
      if (reached[id].load(std::memory_order_relaxed) == 0) continue;
      std::string& seeds = seeds_of[id];
      seeds += seeds.empty() ? "" : ",";
      seeds += std::to_string(seed);
    }
  }
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return 2;
  for (const auto& [id, seeds] : seeds_of) std::fprintf(file, "%d %s\n", id, seeds.c_str());
  std::fclose(file);
  std::printf("slowest_ms %.0f\n", slowest_ms);
  return 0;
}

// --- judging one mutant

volatile uint64_t running = 0;  // the seed, for the handler

// A mutant may crash, exhaust the stack or never end: all of that is noticed.
void Noticed(int signal) {
  char line[64];
  const int length = std::snprintf(line, sizeof(line), "%llu %s\n",
                                   static_cast<unsigned long long>(running), strsignal(signal));
  (void)!write(STDOUT_FILENO, line, static_cast<size_t>(length));
  _exit(1);
}

void NoticeSignals() {
  static char stack[64 * 1024];  // bytes, for when the program's own is exhausted
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof(stack);
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_handler = Noticed;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGVTALRM}) {
    sigaction(signal, &action, nullptr);
  }
}

int Judge(std::string_view seeds, int64_t limit_ms) {
  NoticeSignals();
  const itimerval limit = {{}, {limit_ms / 1000, limit_ms % 1000 * 1000}};
  while (!seeds.empty()) {
    const size_t comma = std::min(seeds.find(','), seeds.size());
    running = ParseNumber(seeds.substr(0, comma));
    seeds.remove_prefix(std::min(comma + 1, seeds.size()));
    setitimer(ITIMER_VIRTUAL, &limit, nullptr);
    const lorry::sim::Result result = lorry::sim::RunSeed({running});
    if (result.violation.empty()) continue;
    std::printf("%s %s\n", std::to_string(running).c_str(), result.violation.c_str());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> words(argv + 1, argv + argc);
  if (words.size() == 3 && words[0] == "--reach") {
    const size_t dots = words[1].find("..");
    if (dots != std::string_view::npos) {
      return Reach(ParseNumber(words[1].substr(0, dots)), ParseNumber(words[1].substr(dots + 2)),
                   argv[3]);
    }
  }
  if (words.size() == 3 && words[0] == "--judge") {
    return Judge(words[1], static_cast<int64_t>(ParseNumber(words[2])));
  }
  std::fprintf(stderr,
               "usage: mutant_seeds --reach A..B FILE | mutant_seeds --judge SEED,... MS\n");
  return 2;
}
