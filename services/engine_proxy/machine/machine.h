// The proxy's machine: one engine's residencies, rows and pauses, as a deterministic value
// (docs/SEMANTICS.md §3, §6).
//
// Step(now, event) changes state; then a planner compares Desired with what is here and asks for at
// most what is missing; TakeReady() hands out what came of it. Contract of a Ready: its records are
// durable before its effects are sent, all of them in one transaction; a driver that cannot persist
// ends the process. Events may be batched: several Steps, one Ready.
//
// Not thread-safe: one thread owns a machine and everything else posts to that thread. No I/O,
// clock or randomness.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "services/engine_proxy/machine/effects.h"
#include "services/engine_proxy/machine/events.h"
#include "services/engine_proxy/machine/records.h"
#include "services/engine_proxy/machine/tables.h"

namespace lorry::proxy {

struct Config {
  MemberId member;
  PoolName pool;
  JournalId new_journal;  // a fresh random id, taken when the records hold none

  // An unload that takes longer makes an SGLang engine WEDGED; the drain before it is not part of
  // it.
  int64_t unload_deadline_ms = 15'000;
  // Retries of a failed fetch, load or probe: doubling between these two.
  int64_t retry_min_ms = 500;
  int64_t retry_max_ms = 30'000;
  // A fetch that failed so often in a row is FAILED; it is tried again after retry_max_ms all the
  // same.
  uint32_t fetch_tries = 3;
  // A fetch that found nobody is tried again for as long as it is wanted, doubling between these
  // two: a store that comes back meets every member's try within two seconds.
  int64_t away_min_ms = 100;
  int64_t away_max_ms = 2'000;
  // So many loads in a row without an answer mean that something holds the registry's lock: an
  // SGLang engine is WEDGED.
  uint32_t hung_loads_limit = 3;
  // A call that broke off may have been an engine's last: for so long, and two good looks, it is not
  // believed to live. vLLM's server looks every 5 s whether its core lives, and answers until then.
  int64_t doubt_ms = 6'000;
  // How often the engine is asked again while something waits for its answer (listing, load,
  // resume).
  int64_t poll_ms = 1'000;
  // Requests of an earlier process of this proxy lost their connection when it ended, and engines
  // end what nobody waits for: vLLM at once, SGLang within 4 s (SGLANG_REQUEST_STATE_WAIT_TIMEOUT).
  // One that lasts longer delays an unload, which has a deadline of its own.
  int64_t orphans_ms = 5'000;
  // Requests that clients sent to the engine directly while they had a lease: the same as the
  // policy's own drain deadline by default.
  int64_t drain_ms = 600'000;
  // The end of a request is known here so much later than the engine knows it, at most: its last
  // bytes pass the door, and the door reports it. Far below poll_ms.
  int64_t door_lag_ms = 50;
  // Requests of an earlier process that go on all the same, on SGLang, are waited for so long before
  // memory is released under them, or weights change: it ends of that.
  int64_t idle_ms = 60'000;
  // How often the engine's list is read though nothing asks for it: a name that vanished is noticed
  // within this.
  int64_t list_ms = 5'000;
  // A member's own answer is repeated so often, in case the last one was lost.
  int64_t observed_ms = 2'000;
  // Requests of an adapter that is loaded on demand wait so long for one that is idle to leave; then
  // the adapters in use give way to it. Longer than most requests' pauses between two others of
  // their adapter, and a small part of what policies let requests wait.
  int64_t yield_ms = 1'000;
  // A pause that a framework asked for ends after so long, whether or not the framework lets the
  // engine go on: far longer than any of them takes for an update.
  int64_t framework_pause_ms = 900'000;
  // A call that binds a name is answered by then. Frameworks give their calls two minutes and more;
  // an engine that is not hung loads within seconds.
  int64_t bind_call_ms = 60'000;
  // Names bound at once. Each keeps its image in memory, on the engine or not.
  uint32_t bindings_limit = 64;
  // Fetches at once; loads and unloads go one by one.
  uint32_t fetches_limit = 2;
};

struct Ready {
  std::vector<Record> records;
  std::vector<Effect> effects;
  std::optional<Tick> wake_at;  // send TimePassed then, or earlier
};

// What became of adapters that are loaded on demand, in this process.
struct DemandTally {
  uint64_t loads = 0;      // begun because requests waited
  uint64_t evictions = 0;  // of what a row stood on
};

// Pauses that frameworks asked for.
struct FrameworkPauses {
  bool holds = false;    // one does, or may
  uint64_t overdue = 0;  // that this process ended because their time was over
};

class Machine {
 public:
  // With which a journal begins: whose it is, and its id.
  static Record FirstRecord(const Config& config);
  // INTERNAL RECORDS_INVALID when a record contradicts its key. Empty records are a first start.
  static absl::StatusOr<Machine> Restore(const Config& config, const Records& records, Tick now);
  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) noexcept;
  ~Machine();

  void Step(Tick now, const Event& event);
  bool HasReady() const;
  Ready TakeReady();

  // For Attach's Hello, status pages and tests.
  JournalId journal() const;
  Term term() const;
  Revision revision() const;  // of the Desired that it goes by
  bool leaves() const;        // it says goodbye
  fleet::Observed Observe() const;
  const DoorTable& door_table() const;
  // How often each row of docs/machines.md was taken since Restore.
  RowsTaken rows_taken() const;
  DemandTally demand_tally() const;
  FrameworkPauses framework_pauses() const;
  // A framework's call is with the engine: what becomes of its memory or weights is known by the answer.
  bool passes_call() const;
  // One line for people: boot, health, rows, residencies.
  std::string Describe() const;

 private:
  struct State;
  explicit Machine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lorry::proxy
