// What a seed draws before it runs: policies and faults. Swarm testing: in most seeds most faults
// never happen, so that the others meet each other more often.
#pragma once

#include "lib/fleet/policy.h"
#include "tests/sim/sim.h"

namespace lorry::sim {

fleet::AdapterPolicy DrawPolicy(Prng& prng);
Faults DrawFaults(Prng& prng);

// Drawn from numbers of their own, so that seeds kept from before them mean what they meant.
struct Mishaps {
  explicit Mishaps(uint64_t seed);

  Prng prng;
  // Per 1000, each second.
  uint64_t watch_break = 0;    // leaders hear nothing of the store for a while, and read it again
  uint64_t policy_change = 0;  // of an adapter
  uint64_t barrier = 0;        // of these changes: the policy says BARRIER, which is not built
  uint64_t records_loss = 0;   // the orchestrator begins another incarnation and adopts the fleet
  uint64_t sleep = 0;          // an engine's memory is released for a while
  uint64_t pause = 0;          // an operator wants an engine paused for a while
  uint64_t hold = 0;           // an operator holds a member's rows, then locks them for a while
  // Faults of planted bugs alone: with skip NEVER one version that no engine can serve keeps all
  // those behind it waiting, which no seed may take for settled.
  uint64_t misfit_version = 0, other_base = 0, ignored = 0;
  bool Chance(uint64_t per_mille) { return per_mille > 0 && prng.Chance(per_mille); }
};

}  // namespace lorry::sim
