// What a seed draws before it runs: policies, faults and mishaps. Swarm testing: in most seeds most
// of them never happen, so that the others meet each other more often.
#pragma once

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "lib/fleet/policy.h"
#include "tests/sim/sim.h"

namespace lorry::sim {

// What is generated or demanded already. `false` waits for a mend in the machines; each says which.
namespace can {
inline constexpr bool kRestoreRecords = true;
inline constexpr bool kRestoreStore = true;
inline constexpr bool kAdoptTheLast = true;
inline constexpr bool kNeverSettleAlone = true;
}  // namespace can

fleet::AdapterPolicy DrawPolicy(Prng& prng);
// How engines come to rest, in a policy whose mode is drawn.
void DrawQuiesce(Prng& prng, fleet::AdapterPolicy& policy);
Faults DrawFaults(Prng& prng);
// What was added later is drawn from numbers of its own, so that older seeds stay what they are
// where none of it happens.
void DrawMore(uint64_t seed, Faults& faults);

// Drawn from numbers of their own. Per 1000: each second, or of what they are a part of.
struct Mishaps {
  explicit Mishaps(uint64_t seed);

  Prng prng;
  Prng rest;                   // for what policies say of it
  uint64_t watch_break = 0;    // leaders hear nothing of the store for a while, and read it again
  uint64_t policy_change = 0;  // of an adapter
  uint64_t barrier = 0;        // of policies: it says BARRIER
  uint64_t pool_leaves = 0;    // of these changes: a pool is not the adapter's any more
  uint64_t records_loss = 0;   // the orchestrator begins another incarnation and adopts the fleet
  uint64_t records_older = 0;  // a backup is restored
  uint64_t both_older = 0;     // of seeds: and with it the store's of the same moment
  uint64_t sleep = 0;          // an engine's memory is released for a while
  uint64_t quiesce = 0;        // of policies: engines come to rest before rows flip
  uint64_t long_pause = 0;     // of seeds: which may take longer than a stage deadline
  uint64_t move = 0;           // a member goes to another pool
  uint64_t join = 0;           // another member joins
  uint64_t stop = 0;           // an operator restarts an engine that loads
  uint64_t leave = 0;          // a proxy drains, says goodbye, and is started again later
  uint64_t leave_loading = 0;  // and so it does as its engine loads
  uint64_t forget = 0;         // of seeds: who is away for seconds is forgotten
  uint64_t retry = 0;          // an operator lifts a verdict
  uint64_t store_older = 0;    // a backup of the store is restored
  uint64_t on_demand = 0;      // of seeds: most adapters are loaded on demand, more than slots
  uint64_t retire = 0;         // an adapter is archived, and taken back, or deleted and made again
  uint64_t framework = 0;      // for each engine: somebody at its door pauses it, or lets it go on
  // For each engine: somebody at its door releases its memory, or changes weights.
  uint64_t release = 0;
  uint64_t bind = 0;      // each second, for each proxy: a framework binds or unbinds a name
  uint64_t full = 0;      // of seeds: engines end full of another fleet's names
  uint64_t source = 0;    // for each adapter: a pool of it takes its versions from elsewhere
  uint64_t pool_out = 0;  // for each adapter: a pool is not its any more, and some seconds later is
  uint64_t roll_back = 0;  // for each adapter: of a pool whose versions another is syncing
  uint64_t many = 0;       // of seeds: many more adapters, elsewhere, that publish all at once
  uint64_t meddle = 0;     // while doors are held or locked: whatever ends that
  bool Chance(uint64_t per_mille) { return per_mille > 0 && prng.Chance(per_mille); }
  uint64_t Leaves(bool loads) const { return loads ? std::max(leave, leave_loading) : leave; }
};

// What a shrunk run does without, by name; everything else is as the seed drew it.
struct Without {
  std::set<std::string> names;
  uint64_t members_most = 64;
  int64_t seconds_most = 1'000;
  uint64_t salt = 0;  // other numbers after the drawing
  bool Has(const std::string& name) const { return !names.contains(name); }
};

struct FaultRow {
  const char* name;
  uint64_t Faults::*chance;
};
struct MishapRow {
  const char* name;
  uint64_t Mishaps::*chance;
};
extern const std::vector<FaultRow> kFaultRows;
extern const std::vector<MishapRow> kMishapRows;
extern const std::vector<std::string> kWorkNames;
void Drop(const Without& without, Faults& faults);
void Drop(const Without& without, Mishaps& mishaps);

}  // namespace lorry::sim
