// The machine's tables (docs/machines.md): which event leads a sync, a verdict or a member from
// where to where. A test compares them with the document, cell by cell.
//
// A pair of state and event without a row means nothing there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/base/transition.h"
#include "services/sync_orchestrator/machine/records.h"
#include "services/sync_orchestrator/machine/status.h"

namespace lorry::sync {

enum class SyncEvent : uint8_t {
  kMayBegin,
  kAllHaveIt,
  kEnoughAtDeadline,
  kTooFewAtDeadline,
  kEnoughForBarrier,
  kUnreachable,
  kAllHold,
  kAllLocked,
  kHoldEnded,
  kBarrierDeadline,
  kTooFewLeft,
  kRefused,
  kPoisoned,
  kStalls,
  kOverridden,
  kRunFenced,
  kPolicyChanged,
};
enum class SyncAsk : uint8_t { kStage, kHold, kLock, kCommit, kCommitWithoutTheSlow, kAbort };
enum class SyncWrite : uint8_t { kNothing, kSync, kDecision };

struct SyncTransition {
  SyncPhase from;
  SyncEvent event;
  SyncPhase to;
  SyncAsk ask;
  SyncWrite write;
  Abort why = Abort::kNone;
};
std::span<const SyncTransition> SyncTable();
std::vector<TableRow> SyncRows();

enum class VerdictEvent : uint8_t {
  kLoaded,
  kDeaths,
  kLives,
  kRefusals,
  kMisfit,
  kRestarted,
  kReturned,
  kLifted
};

struct VerdictTransition {
  Verdict from;
  VerdictEvent event;
  Verdict to;
};
std::span<const VerdictTransition> VerdictTable();
std::vector<TableRow> VerdictRows();  // each writes the verdict, and has no effect

// How often each row was taken, in the order of the tables.
struct RowsTaken {
  std::vector<uint64_t> sync, verdict;
};

}  // namespace lorry::sync
