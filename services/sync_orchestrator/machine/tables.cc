#include "services/sync_orchestrator/machine/tables.h"

#include <string>
#include <string_view>

namespace lorry::sync {
namespace {

using P = SyncPhase;
using E = SyncEvent;
using A = SyncAsk;
using W = SyncWrite;

constexpr SyncTransition kSync[] = {
    {P::kIdle, E::kMayBegin, P::kStaging, A::kStage, W::kSync},
    {P::kStaging, E::kAllHaveIt, P::kIdle, A::kCommit, W::kDecision},
    {P::kStaging, E::kEnoughAtDeadline, P::kIdle, A::kCommitWithoutTheSlow, W::kDecision},
    {P::kStaging, E::kTooFewAtDeadline, P::kIdle, A::kAbort, W::kDecision, Abort::kStageDeadline},
    {P::kStaging, E::kEnoughForBarrier, P::kHolding, A::kHold, W::kSync},
    {P::kStaging, E::kUnreachable, P::kIdle, A::kAbort, W::kDecision, Abort::kUnreachable},
    {P::kStaging, E::kTooFewLeft, P::kIdle, A::kAbort, W::kDecision, Abort::kTooFewEngines},
    {P::kStaging, E::kRefused, P::kIdle, A::kAbort, W::kDecision, Abort::kRefused},
    {P::kStaging, E::kPoisoned, P::kIdle, A::kAbort, W::kDecision, Abort::kPoisoned},
    {P::kStaging, E::kStalls, P::kIdle, A::kAbort, W::kDecision, Abort::kStalls},
    {P::kStaging, E::kOverridden, P::kIdle, A::kAbort, W::kDecision, Abort::kOverridden},
    {P::kStaging, E::kRunFenced, P::kIdle, A::kAbort, W::kDecision, Abort::kRunFenced},
    {P::kStaging, E::kPolicyChanged, P::kIdle, A::kAbort, W::kDecision, Abort::kPolicyChanged},
    {P::kHolding, E::kAllHold, P::kLocking, A::kLock, W::kNothing},
    {P::kHolding, E::kTooFewLeft, P::kIdle, A::kAbort, W::kDecision, Abort::kTooFewEngines},
    {P::kHolding, E::kHoldEnded, P::kIdle, A::kAbort, W::kDecision, Abort::kHoldEnded},
    {P::kHolding, E::kBarrierDeadline, P::kIdle, A::kAbort, W::kDecision, Abort::kBarrierDeadline},
    {P::kHolding, E::kRefused, P::kIdle, A::kAbort, W::kDecision, Abort::kRefused},
    {P::kHolding, E::kPoisoned, P::kIdle, A::kAbort, W::kDecision, Abort::kPoisoned},
    {P::kHolding, E::kStalls, P::kIdle, A::kAbort, W::kDecision, Abort::kStalls},
    {P::kHolding, E::kOverridden, P::kIdle, A::kAbort, W::kDecision, Abort::kOverridden},
    {P::kHolding, E::kRunFenced, P::kIdle, A::kAbort, W::kDecision, Abort::kRunFenced},
    {P::kHolding, E::kPolicyChanged, P::kIdle, A::kAbort, W::kDecision, Abort::kPolicyChanged},
    {P::kLocking, E::kAllLocked, P::kIdle, A::kCommit, W::kDecision},
    {P::kLocking, E::kTooFewLeft, P::kIdle, A::kAbort, W::kDecision, Abort::kTooFewEngines},
    {P::kLocking, E::kHoldEnded, P::kIdle, A::kAbort, W::kDecision, Abort::kHoldEnded},
    {P::kLocking, E::kBarrierDeadline, P::kIdle, A::kAbort, W::kDecision, Abort::kBarrierDeadline},
    {P::kLocking, E::kRefused, P::kIdle, A::kAbort, W::kDecision, Abort::kRefused},
    {P::kLocking, E::kPoisoned, P::kIdle, A::kAbort, W::kDecision, Abort::kPoisoned},
    {P::kLocking, E::kStalls, P::kIdle, A::kAbort, W::kDecision, Abort::kStalls},
    {P::kLocking, E::kOverridden, P::kIdle, A::kAbort, W::kDecision, Abort::kOverridden},
    {P::kLocking, E::kRunFenced, P::kIdle, A::kAbort, W::kDecision, Abort::kRunFenced},
    {P::kLocking, E::kPolicyChanged, P::kIdle, A::kAbort, W::kDecision, Abort::kPolicyChanged},
};

constexpr VerdictTransition kVerdict[] = {
    {Verdict::kOpen, VerdictEvent::kLoaded, Verdict::kProven},
    {Verdict::kOpen, VerdictEvent::kDeaths, Verdict::kPoisoned},
    {Verdict::kOpen, VerdictEvent::kLives, Verdict::kStalls},
    {Verdict::kOpen, VerdictEvent::kRefusals, Verdict::kRefused},
    {Verdict::kOpen, VerdictEvent::kMisfit, Verdict::kRefused},
    {Verdict::kProven, VerdictEvent::kDeaths, Verdict::kPoisoned},
    {Verdict::kRefused, VerdictEvent::kDeaths, Verdict::kPoisoned},
    {Verdict::kRefused, VerdictEvent::kRestarted, Verdict::kOpen},
    {Verdict::kRefused, VerdictEvent::kLifted, Verdict::kOpen},
    {Verdict::kPoisoned, VerdictEvent::kLifted, Verdict::kOpen},
    {Verdict::kStalls, VerdictEvent::kDeaths, Verdict::kPoisoned},
    {Verdict::kStalls, VerdictEvent::kReturned, Verdict::kOpen},
    {Verdict::kStalls, VerdictEvent::kLifted, Verdict::kOpen},
};

// Each in the order of its enumeration.
constexpr std::string_view kSyncEvents[] = {"may begin",
                                            "all have it",
                                            "enough at the deadline",
                                            "too few at the deadline",
                                            "enough for a barrier",
                                            "unreachable",
                                            "all hold",
                                            "all locked",
                                            "hold ended",
                                            "barrier deadline",
                                            "too few left",
                                            "refused",
                                            "poisoned",
                                            "stalls engines",
                                            "overridden",
                                            "run fenced",
                                            "policy changed"};
constexpr std::string_view kSyncAsks[] = {
    "Stage", "Hold", "Lock", "Commit", "Commit without the slow", "Abort "};
constexpr std::string_view kSyncWrites[] = {"–", "pool, sync", "decision, no sync, pool"};
constexpr std::string_view kVerdictEvents[] = {"loaded", "deaths",    "lives",    "refusals",
                                               "misfit", "restarted", "returned", "lifted"};

}  // namespace

std::span<const SyncTransition> SyncTable() { return kSync; }
std::span<const VerdictTransition> VerdictTable() { return kVerdict; }

std::vector<TableRow> SyncRows() {
  std::vector<TableRow> rows;
  for (const SyncTransition& t : kSync) {
    rows.push_back({std::string(ToString(t.from)), std::string(NameIn(kSyncEvents, t.event)),
                    std::string(ToString(t.to)),
                    std::string(NameIn(kSyncAsks, t.ask)) + std::string(ToString(t.why)),
                    std::string(NameIn(kSyncWrites, t.write))});
  }
  return rows;
}

std::vector<TableRow> VerdictRows() {
  std::vector<TableRow> rows;
  for (const VerdictTransition& t : kVerdict) {
    rows.push_back({std::string(ToString(t.from)), std::string(NameIn(kVerdictEvents, t.event)),
                    std::string(ToString(t.to)), "–", "verdict"});
  }
  return rows;
}

}  // namespace lorry::sync
