// CPU of the orchestrator's machine alone for one publish, from the stored version until every
// engine serves it, and the memory that it keeps for each engine and adapter. See README.md.
//   machine_bench [ENGINES ADAPTERS]...
#include <cstdio>
#include <cstdlib>

#include "tests/bench/machine/fleet.h"

namespace lorry::sync {
namespace {

double Measure(size_t engines, size_t adapters) {
  BenchFleet fleet(engines, adapters);
  fleet.Publish(0);  // the first one also fills what later ones find
  fleet.TakeSpent();
  const WatchEvent told = fleet.Publish(0);
  const BenchFleet::Spent spent = fleet.TakeSpent();
  std::printf("%8zu x %-4zu %8.3f s %9.1f us an event %7.0f bytes an engine and adapter%s\n",
              engines, adapters, spent.seconds,
              spent.seconds * 1e6 / static_cast<double>(spent.events),
              static_cast<double>(fleet.bytes()) / static_cast<double>(engines * adapters),
              told.done == engines ? "" : ", not ACTIVE everywhere");
  std::fflush(stdout);
  return spent.seconds;
}

}  // namespace
}  // namespace lorry::sync

int main(int argc, char** argv) {
  using lorry::sync::Measure;
  std::printf("the orchestrator's machine, CPU of one publish until the last engine serves it\n");
  std::printf(" engines x adapters\n");
  if (argc >= 3) {
    for (int i = 1; i + 1 < argc; i += 2)
      Measure(std::strtoul(argv[i], nullptr, 10), std::strtoul(argv[i + 1], nullptr, 10));
    return 0;
  }
  Measure(100, 10);
  const double few = Measure(300, 10);
  Measure(1'000, 1);
  const double many = Measure(1'000, 10);
  const double more = Measure(3'000, 10);
  const double wide = Measure(1'000, 50);
  std::printf(
      "growth: %.1f for 3.3 times the engines, %.1f for 3 times, %.1f for 5 times the adapters\n",
      many / few, more / many, wide / many);
  return 0;
}
