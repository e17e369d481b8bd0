// The orchestrator's machine: which member should serve which version, as a deterministic value
// (docs/SEMANTICS.md §3, §4, §6).
//
// Step(now, event) changes state; then planners run over what has changed (syncs, documents, holds,
// leases, watches), so that nothing depends on which event came. TakeReady() hands out what came of
// it. Contract of a Ready: `records` are durable in one transaction, conditional on the stored meta
// record being `fence`, before `effects` are sent; `replies` go last. When the condition fails the
// reign is over: drop the machine, restore another when leadership returns. Events may be batched:
// several Steps, one Ready.
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
#include "services/sync_orchestrator/machine/effects.h"
#include "services/sync_orchestrator/machine/events.h"
#include "services/sync_orchestrator/machine/records.h"
#include "services/sync_orchestrator/machine/status.h"
#include "services/sync_orchestrator/machine/tables.h"

namespace lorry::sync {

struct Config {
  // Taken when the records hold no incarnation; from 1 up, and above that of any records that this
  // fleet has had and forgot together with its store.
  uint64_t new_incarnation = 1;
  // A session that ended counts as LOST, and drops out of a running sync, after this long: longer
  // than a proxy needs to dial again, shorter than any stage deadline.
  int64_t lost_after_ms = 5'000;
  // A canary that has not answered its token after this share of the stage deadline gets a second
  // beside it.
  uint32_t canary_percent = 25;
  // After an ABORT, or a member's failure, the next try waits: doubling between these two.
  int64_t retry_min_ms = 1'000;
  int64_t retry_max_ms = 60'000;
  // Desired and holds are sent again when they were not answered for so long.
  int64_t resend_ms = 2'000;
  // After a COMMIT a watch is final when every reachable member serves it, or after this long.
  int64_t deliver_ms = 60'000;
  // With skip NEVER so many versions wait; more is SYNC_BACKLOG. A trainer that far ahead should be
  // told.
  uint32_t backlog_limit = 8;
  // Engines of a group, dead or hung, that a version may cost; then it is POISONED or
  // STALLS_ENGINES.
  uint32_t deaths_limit = 2;
  // A member that is LOST or DEAD is forgotten after this long, counted anew in each reign: a day,
  // in which people see what became of it, and in which whoever was away for a night is still
  // known.
  int64_t forget_ms = int64_t{24} * 3'600'000;
  // Twice the largest fleet that one orchestrator was measured with (tests/bench/machine).
  size_t members_limit = 20'000;
  // What changes in a watch's progress alone, bytes most of all, is told at most so often: the pace
  // of Watch, and more than people can read.
  int64_t progress_ms = 100;
};

struct Ready {
  // What "meta" must hold in storage for the transaction to happen; none: there is no meta yet.
  std::optional<MetaRecord> fence;
  std::vector<Record> records;
  std::vector<Effect> effects;
  std::vector<Reply> replies;
  std::optional<Tick> wake_at;  // send TimePassed then, or earlier
};

// What the machine has looked at so far, for tests that hold it to what changed.
struct Work {
  uint64_t parts = 0;    // of documents that were computed
  uint64_t members = 0;  // whose part in a sync, a watch or an answer was judged
};

class Machine {
 public:
  // Begins a new term over the records; its first Ready writes it. INTERNAL RECORDS_INVALID when
  // they contradict.
  static absl::StatusOr<Machine> Restore(const Config& config, const Records& records, Tick now);
  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) noexcept;
  ~Machine();

  void Step(Tick now, Event event);
  bool HasReady() const;
  Ready TakeReady();

  Term term() const;
  Status GetStatus() const;
  // One line a member and one a pool, for people and transcripts.
  std::string Describe() const;

  // For tests, since it costs as much as the fleet is large: what would come out otherwise if the
  // planners looked at everything, and not at what has changed alone. Empty: nothing.
  std::string CheckDerived() const;
  Work work() const;
  // How often each row of docs/machines.md was taken since Restore.
  RowsTaken rows_taken() const;

 private:
  struct State;
  explicit Machine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace lorry::sync
