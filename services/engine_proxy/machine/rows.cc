#include "services/engine_proxy/machine/rows.h"

#include <algorithm>

namespace lorry::proxy {
namespace {

using fleet::RowMode;

bool IsServing(const Core& core, const Row& row) {
  return row.record.open && core.IsLoaded(row.record.target);
}

void Write(Core& core, const AdapterName& adapter, Row& row, const RowRecord& record) {
  if (row.record == record) return;
  row.record = record;
  core.Save(RowKey(adapter), record);
}

// A decision: flip if its version is LOADED here. Until then a ROLLING row goes on with what it
// has, a BARRIER row closes.
void Open(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (wanted.epoch < row.record.epoch) return;  // an epoch never falls within an incarnation
  row.held = Epoch();
  row.revoked = Epoch();
  RowRecord record = row.record;
  record.locked = Epoch();
  const bool is_there =
      record.open && record.epoch == wanted.epoch && record.target == wanted.target;
  if (core.IsLoaded(wanted.target)) {
    record.open = true;
    record.epoch = wanted.epoch;
    record.target = wanted.target;
  } else if (!is_there && !(wanted.serve_old && IsServing(core, row))) {
    record.open = false;
    record.target = EngineName();
  }
  Write(core, wanted.adapter, row, record);
}

void Hold(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  const bool old = wanted.epoch <= row.record.epoch || wanted.epoch <= row.revoked;
  if (old || row.held == wanted.epoch || row.record.locked.value != 0) return;
  row.held = wanted.epoch;
  row.held_until = core.now + wanted.hold_for_ms;
}

// Only for the epoch of a live hold, or where nothing was admitted anyway.
void Lock(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (wanted.epoch <= row.record.epoch || row.record.locked == wanted.epoch) return;
  const bool held = row.held == wanted.epoch && ReportedModeOf(core, row) == RowMode::kHeld;
  const bool closed = row.held.value == 0 && ReportedModeOf(core, row) == RowMode::kClosed;
  if (!held && !closed) return;
  RowRecord record = row.record;
  record.locked = wanted.epoch;
  row.held = Epoch();
  Write(core, wanted.adapter, row, record);
}

void Close(Core& core, const fleet::DesiredRow& wanted, Row& row) {
  if (wanted.epoch < row.record.epoch) return;
  row.held = Epoch();
  Write(core, wanted.adapter, row, RowRecord{row.record.incarnation, false, wanted.epoch, {}, {}});
}

void Meet(Core& core, const fleet::DesiredRow& wanted) {
  Row& row = core.rows[wanted.adapter];
  if (row.record.incarnation != core.term.incarnation) {
    // Epochs of another incarnation say nothing here; what is served stays until this one decides.
    RowRecord record = row.record;
    record.incarnation = core.term.incarnation;
    record.epoch = Epoch();
    Write(core, wanted.adapter, row, record);
  }
  switch (wanted.mode) {
    case RowMode::kOpen:
      return Open(core, wanted, row);
    case RowMode::kHeld:
      return Hold(core, wanted, row);
    case RowMode::kLocked:
      return Lock(core, wanted, row);
    case RowMode::kClosed:
      return Close(core, wanted, row);
  }
}

}  // namespace

fleet::RowMode ModeOf(const Core& core, const Row& row) {
  if (row.record.locked.value != 0) return RowMode::kLocked;
  if (!IsServing(core, row)) return RowMode::kClosed;
  return row.held.value != 0 ? RowMode::kHeld : RowMode::kOpen;
}

fleet::RowMode ReportedModeOf(const Core& core, const Row& row) {
  const RowMode mode = ModeOf(core, row);
  if (mode == RowMode::kOpen || !row.was_open) return mode;
  const bool shut = row.shut_at.value != 0 && core.reported >= row.shut_at;
  return shut ? mode : RowMode::kOpen;
}

void AdvanceRows(Core& core) {
  for (auto& [adapter, row] : core.rows) {
    if (row.held.value == 0 || core.now < row.held_until) continue;
    row.revoked = row.held;
    row.held = Epoch();
  }
  if (!core.desired.has_value()) return;
  for (const fleet::DesiredRow& wanted : core.desired->rows) Meet(core, wanted);
  for (auto it = core.rows.begin(); it != core.rows.end();) {
    const bool known = core.WantedRow(it->first) != nullptr;
    if (!known) core.Erase(RowKey(it->first));
    it = known ? std::next(it) : core.rows.erase(it);
  }
}

std::optional<Tick> RowWakeAt(const Core& core) {
  std::optional<Tick> wake;
  for (const auto& [adapter, row] : core.rows) {
    if (row.held.value != 0 && (!wake.has_value() || row.held_until < *wake)) wake = row.held_until;
  }
  return wake;
}

}  // namespace lorry::proxy
