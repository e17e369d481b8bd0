#include "services/engine_proxy/machine/rows.h"

#include <algorithm>

#include "lib/base/first_after.h"
#include "lib/base/transition.h"
#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/quiesce.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/row_table.h"

namespace lorry::proxy {
namespace {

using fleet::RowMode;

// A row that is CLOSED while doors are asked to hold or to lock counts as held: it stays CLOSED.
bool IsAskedToStop(const Core& core, const AdapterName& adapter, const Row& row) {
  const fleet::DesiredRow* wanted = core.session ? core.WantedRow(adapter) : nullptr;
  return wanted != nullptr && wanted->epoch > row.record.epoch &&
         (wanted->mode == RowMode::kHeld || wanted->mode == RowMode::kLocked);
}

bool IsServing(const Core& core, const AdapterName& adapter, const Row& row) {
  const bool is_closed = std::holds_alternative<row_at::Closed>(row.phase);
  if (is_closed && IsAskedToStop(core, adapter, row)) return false;
  const bool may_open = !row.record.waits || core.desired.has_value();
  const EngineName& target = row.record.target;
  return row.record.open && may_open && (core.IsLoaded(target) || IsOnDemand(core, target));
}

// Whether what the row stands on is loaded, or may be, as long as that is not known: until then the
// row gives nothing up.
bool MayServe(const Core& core, const Row& row) {
  if (!row.record.open) return false;
  const Residency* target = core.Find(row.record.target);
  if (IsOnDemand(core, row.record.target)) return true;
  return target != nullptr && (target->Is<at::Loaded>() || MaySurvive(core, *target));
}

void NoteTargets(Core& core) {
  core.row_targets.clear();
  for (const auto& [adapter, row] : core.rows) {
    if (row.record.open) core.row_targets.insert(row.record.target);
  }
}

void Write(Core& core, const AdapterName& adapter, Row& row, const RowRecord& record) {
  if (row.record == record) return;
  row.record = record;
  NoteTargets(core);
  core.Save(RowKey(adapter), record);
}

RowRecord Written(const RowRecord& record, RowWrite write, const fleet::DesiredRow* wanted) {
  RowRecord next = record;
  switch (write) {
    case RowWrite::kNothing:
      return next;
    case RowWrite::kDecision:
      next.open = true;
      next.epoch = wanted->epoch;
      next.target = wanted->target;
      next.locked = Epoch();
      next.waits = wanted->serve_from.value != 0;
      return next;
    case RowWrite::kUnlocked:
      next.locked = Epoch();
      return next;
    case RowWrite::kShut:
      next.open = false;
      next.target = EngineName();
      next.locked = Epoch();
      return next;
    case RowWrite::kLock:
      next.locked = wanted->epoch;
      return next;
    case RowWrite::kClosed:
      next.open = false;
      next.epoch = wanted->epoch;
      next.target = EngineName();
      next.locked = Epoch();
      return next;
    case RowWrite::kWaits:
      next.waits = true;
      return next;
  }
  return next;
}

void Enter(Row& row, RowState next) {
  switch (next) {
    case RowState::kClosed:
      row.phase = row_at::Closed();
      return;
    case RowState::kOpen:
      row.phase = row_at::Open();
      return;
    case RowState::kHeld:
      row.phase = row_at::Held();
      return;
    case RowState::kLocked:
      row.phase = row_at::Locked();
      return;
  }
}

// The one place where a row changes its state.
bool Move(Core& core, const AdapterName& adapter, Row& row, RowEvent event,
          const fleet::DesiredRow* wanted = nullptr) {
  const auto from = static_cast<RowState>(row.phase.index());
  const RowTransition* at = Take(RowTable(), core.taken.row, from, event);
  if (at == nullptr) return false;
  Enter(row, at->to);
  Write(core, adapter, row, Written(row.record, at->write, wanted));
  return true;
}

bool Hold(Core& core, const fleet::DesiredRow& wanted, Row& row, Tick until) {
  if (HeldEpoch(row) == wanted.epoch || !Move(core, wanted.adapter, row, RowEvent::kHold))
    return false;
  std::get<row_at::Held>(row.phase) = {wanted.epoch, until};
  return true;
}

// From one version to another. Where the engine is to be at rest meanwhile the row holds until it
// is, or until the hold's deadline: a decision is followed in any case.
void Flip(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (HoldsBeforeFlip(wanted, row)) {
    // One that holds already does so for an earlier decision: that its target changes prolongs
    // nothing.
    const auto* held = std::get_if<row_at::Held>(&row.phase);
    const Tick limit = core.now + wanted.hold_for_ms;
    if (Hold(core, wanted, row, held != nullptr ? std::min(held->until, limit) : limit)) return;
    const bool is_shut = ReportedModeOf(core, row) == RowMode::kHeld;
    if (!is_shut || !IsAtRest(core, wanted, row)) return;
  }
  Move(core, wanted.adapter, row, RowEvent::kDecided, &wanted);
  row.revoked = Epoch();
}

// Whether the row may stand on the decided version: it is LOADED here, or the row stands on it
// already, and it is loaded on demand.
bool CanFollow(const Core& core, const fleet::DesiredRow& wanted, const RowRecord& record) {
  const bool stands = record.open && record.target == wanted.target;
  return core.IsLoaded(wanted.target) || (stands && IsOnDemand(core, wanted.target));
}

// A decision: flip if its version is LOADED here. Until then the row goes on with what it has, but
// not behind a barrier: there it closes.
void Open(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (wanted.epoch < row.record.epoch) {  // an epoch never falls within an incarnation
    // It is from before a version that a verdict keeps this engine from loading again.
    if (!MayServe(core, row)) Move(core, wanted.adapter, row, RowEvent::kCannotServe);
    return;
  }
  if (row.revoked != wanted.epoch) row.revoked = Epoch();
  const RowRecord& record = row.record;
  const bool is_there =
      record.open && record.epoch == wanted.epoch && record.target == wanted.target;
  if (CanFollow(core, wanted, record)) {
    const bool waits_as_told = record.waits == (wanted.serve_from.value != 0);
    const bool stands =
        is_there && waits_as_told && std::holds_alternative<row_at::Open>(row.phase);
    if (!stands) Flip(core, wanted, row);
  } else if (is_there || (row.record.epoch >= wanted.serve_from && MayServe(core, row))) {
    Move(core, wanted.adapter, row, RowEvent::kGoesOn);
  } else if (record.open || !std::holds_alternative<row_at::Closed>(row.phase)) {
    Move(core, wanted.adapter, row, RowEvent::kCannotServe);
  }
}

// Only for the epoch of a live hold, or where nothing was admitted anyway, and once the engine is
// at rest where it must be. One that is LOCKED for an epoch that was broken off, without having
// heard of that, goes from one promise to the next.
void Lock(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (wanted.epoch <= row.record.epoch || row.record.locked == wanted.epoch) return;
  const RowMode mode = ReportedModeOf(core, row);
  const bool held = HeldEpoch(row) == wanted.epoch && mode == RowMode::kHeld;
  if (!held && mode != RowMode::kClosed && mode != RowMode::kLocked) return;
  if (!IsAtRest(core, wanted, row)) return;
  Move(core, wanted.adapter, row, RowEvent::kLock, &wanted);
}

void Close(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  const RowRecord closed = Written(row.record, RowWrite::kClosed, &wanted);
  const bool stands = closed == row.record && std::holds_alternative<row_at::Closed>(row.phase);
  if (wanted.epoch < row.record.epoch || stands) return;
  Move(core, wanted.adapter, row, RowEvent::kClose, &wanted);
}

// Whoever comes back in the middle of a barrier may stand on what was decided before the last one:
// behind that it serves nothing, and there is nothing to hold.
void LeaveBehind(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  const RowRecord& record = row.record;
  if (!record.open || record.epoch >= wanted.serve_from || record.locked.value != 0) return;
  Move(core, wanted.adapter, row, RowEvent::kCannotServe);
}

void Meet(Core& core, const fleet::DesiredRow& wanted) {
  Row& row = core.rows[wanted.adapter];
  const bool is_new = row.record == RowRecord();
  if (is_new || row.record.incarnation != core.term.incarnation) {
    // Epochs of another incarnation say nothing here; what is served stays until this one decides.
    RowRecord record = row.record;
    record.incarnation = core.term.incarnation;
    record.epoch = Epoch();
    record.pool = core.config.pool;
    Write(core, wanted.adapter, row, record);
  }
  switch (wanted.mode) {
    case RowMode::kOpen:
      return Open(core, wanted, row);
    case RowMode::kHeld:
      LeaveBehind(core, wanted, row);
      if (wanted.epoch > row.record.epoch && wanted.epoch > row.revoked)
        Hold(core, wanted, row, core.now + wanted.hold_for_ms);
      return;
    case RowMode::kLocked:
      LeaveBehind(core, wanted, row);
      return Lock(core, wanted, row);
    case RowMode::kClosed:
      return Close(core, wanted, row);
  }
}

void FollowTarget(Core& core, const AdapterName& adapter, Row& row) {
  Move(core, adapter, row,
       IsServing(core, adapter, row) ? RowEvent::kServes : RowEvent::kStopsServing);
  const auto* held = std::get_if<row_at::Held>(&row.phase);
  if (held == nullptr || core.now < held->until) return;
  row.revoked = held->epoch;
  Move(core, adapter, row, RowEvent::kHoldEnds);
}

// Said in a session alone: whoever closes its door while nobody is there to hear it goes on from
// its journal when it is back.
void Leave(Core& core) {
  core.leaves = true;
  for (auto& [adapter, row] : core.rows) Move(core, adapter, row, RowEvent::kLeaves);
}

}  // namespace

fleet::RowMode ModeOf(const Row& row) {
  constexpr RowMode kModes[] = {RowMode::kClosed, RowMode::kOpen, RowMode::kHeld, RowMode::kLocked};
  return kModes[row.phase.index()];
}

Epoch HeldEpoch(const Row& row) {
  const auto* held = std::get_if<row_at::Held>(&row.phase);
  return held != nullptr ? held->epoch : Epoch();
}

fleet::RowMode ReportedModeOf(const Core& core, const Row& row) {
  const RowMode mode = ModeOf(row);
  if (mode == RowMode::kOpen || !row.was_open) return mode;
  const bool shut = row.shut_at.value != 0 && core.reported >= row.shut_at;
  return shut ? mode : RowMode::kOpen;
}

void RestoreRow(Core& core, const AdapterName& adapter, const RowRecord& record) {
  Row& row = core.rows[adapter];
  const bool is_anothers = !record.pool.empty() && record.pool != core.config.pool;
  if (is_anothers) {
    core.rows.erase(adapter);
    return core.Erase(RowKey(adapter));
  }
  row.record = record;
  row.record.pool = core.config.pool;
  if (record.locked.value != 0) row.phase = row_at::Locked();
  NoteTargets(core);
}

void AdvanceRows(Core& core) {
  if (core.door == DoorState::kClosed && core.session && !core.leaves) Leave(core);
  if (core.leaves) return;
  for (auto& [adapter, row] : core.rows) FollowTarget(core, adapter, row);
  if (!core.desired.has_value()) return;
  for (const fleet::DesiredRow& wanted : core.desired->rows) {
    Meet(core, wanted);
    FollowTarget(core, wanted.adapter, core.rows[wanted.adapter]);
  }
  if (core.rows.size() == core.wanted_rows.size()) return;
  std::erase_if(core.rows, [&](const auto& entry) {
    const bool known = core.WantedRow(entry.first) != nullptr;
    if (!known) core.Erase(RowKey(entry.first));
    return !known;
  });
  NoteTargets(core);
}

std::optional<Tick> RowWakeAt(const Core& core) {
  FirstAfter wake(core.now);
  for (const auto& [adapter, row] : core.rows) {
    const auto* held = std::get_if<row_at::Held>(&row.phase);
    if (held != nullptr) wake.At(held->until);
  }
  return wake.first();
}

}  // namespace lorry::proxy
