#include "services/engine_proxy/machine/quiesce.h"

#include "absl/strings/str_cat.h"
#include "lib/fleet/quiesce.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/rows.h"

namespace lorry::proxy {
namespace {

using fleet::RowMode;

// A row that is not open serves no version, and need not wait.
bool MustRest(const fleet::DesiredRow& wanted, const Row& row) {
  return wanted.quiesce.kind != fleet::PauseKind::kNone && row.record.open;
}

// Nothing but its engine keeps the row from being LOCKED or from flipping.
bool AwaitsRest(const Core& core, const fleet::DesiredRow& wanted, const Row& row) {
  if (!MustRest(wanted, row)) return false;
  const RowMode mode = ReportedModeOf(core, row);
  const bool is_held = mode == RowMode::kHeld && HeldEpoch(row) == wanted.epoch;
  if (wanted.mode == RowMode::kOpen) return is_held && core.IsLoaded(wanted.target);
  const bool is_locked = mode == RowMode::kLocked && row.record.locked != wanted.epoch;
  const bool is_closed = mode == RowMode::kClosed && wanted.epoch > row.record.epoch;
  const bool is_shut = is_held || is_locked || is_closed;
  return wanted.mode == RowMode::kLocked && is_shut;
}

// A pause is still to come, or under way. A WEDGED engine is not paused: SGLang resumes only when
// an abort has ended every request, and one that is stuck in the registry never ends. Nor is one
// whose door drains, which waits for the very requests that a pause would keep.
bool WillBePaused(const Core& core, const fleet::DesiredRow& wanted, const Row& row) {
  const bool can_be_asked = core.session && core.door == DoorState::kOpen && core.answers &&
                            !core.boot.empty() && !core.asleep && !core.IsWedged();
  return can_be_asked && fleet::IsEnginePause(wanted.quiesce.kind) &&
         row.pause_given_up.epoch != wanted.epoch;
}

// What named the version, or an alias of it, goes on with it wherever the row stands; what clients
// who were leased the name send to the engine directly is their own affair.
bool IsBusy(const Core& core, const Row& row) {
  const Residency* target = core.Find(row.record.target);
  if (target == nullptr) return false;
  const bool is_unknown = target->uncounted.has_value() && !target->uncounted->leased;
  return is_unknown || core.LatestInFlight(target->name) > 0;
}

}  // namespace

bool HoldsBeforeFlip(const fleet::DesiredRow& wanted, const Row& row) {
  const bool is_between_versions = std::holds_alternative<row_at::Open>(row.phase) ||
                                   std::holds_alternative<row_at::Held>(row.phase);
  return wanted.quiesce.kind != fleet::PauseKind::kNone && is_between_versions &&
         row.record.target != wanted.target && row.revoked != wanted.epoch;
}

bool WantsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row) {
  return AwaitsRest(core, wanted, row) && WillBePaused(core, wanted, row);
}

bool NeedsPause(const Core& core, const fleet::DesiredRow& wanted, const Row& row, Epoch epoch) {
  if (wanted.epoch != epoch || row.pause_given_up.epoch == epoch) return false;
  const bool is_locked = wanted.mode == RowMode::kLocked && row.record.locked == epoch;
  return is_locked || AwaitsRest(core, wanted, row);
}

bool IsAtRest(const Core& core, const fleet::DesiredRow& wanted, const Row& row) {
  if (!MustRest(wanted, row)) return true;
  if (IsPausedFor(core, wanted.adapter, wanted.epoch)) return true;
  return !WillBePaused(core, wanted, row) && !IsBusy(core, row);
}

std::string WhatRestWaitsFor(const Core& core, const fleet::DesiredRow& wanted, const Row& row) {
  if (!AwaitsRest(core, wanted, row)) return "";
  if (WillBePaused(core, wanted, row)) return "the pause of its engine";
  const bool failed = row.pause_given_up.epoch == wanted.epoch && !row.pause_given_up.why.empty();
  return absl::StrCat(failed ? row.pause_given_up.why : "", failed ? "; now waits for " : "",
                      "requests in flight");
}

}  // namespace lorry::proxy
