#include "services/engine_proxy/machine/door.h"

#include <algorithm>

#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/observe.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/rows.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

bool IsRouted(const Core& core, const Residency& residency) {
  return residency.Is<at::Loaded>() && !IsLeaving(core, residency);
}

// What status says of the engine and the version, where that is more than the time that a load takes.
std::string WhyCatchingUp(const Core& core, const fleet::DesiredRow* wanted) {
  if (std::string trouble = EngineTrouble(core); !trouble.empty()) return trouble;
  const Residency* target = wanted != nullptr ? core.Find(wanted->target) : nullptr;
  if (target == nullptr) return "";
  const auto* fetched = std::get_if<at::Fetched>(&target->phase);
  if (fetched != nullptr && fetched->no_slot.has_value()) return *fetched->no_slot;
  return target->Is<at::Failed>() || IsPutOff(core, *target) ? WhyAway(core, *target) : "";
}

DoorRow RowFor(const Core& core, const AdapterName& adapter, const Row& row) {
  DoorRow out;
  out.adapter = adapter;
  out.mode = ModeOf(row);
  out.epoch = row.record.epoch;
  if (out.mode == fleet::RowMode::kOpen) out.target = row.record.target;
  if (out.mode == fleet::RowMode::kHeld) out.epoch = HeldEpoch(row);
  if (out.mode == fleet::RowMode::kLocked) out.epoch = row.record.locked;
  const fleet::DesiredRow* wanted = core.WantedRow(adapter);
  out.catching_up =
      out.mode == fleet::RowMode::kClosed &&
      (row.record.open || (wanted != nullptr && wanted->mode != fleet::RowMode::kClosed));
  if (out.catching_up) out.waits_for = WhyCatchingUp(core, wanted);
  out.behind = out.mode == fleet::RowMode::kOpen && wanted != nullptr &&
               wanted->mode == fleet::RowMode::kOpen && wanted->epoch > row.record.epoch;
  out.on_demand = out.mode == fleet::RowMode::kOpen && IsOnDemand(core, row.record.target);
  const Residency* target = out.on_demand ? core.Find(row.record.target) : nullptr;
  if (target != nullptr && !IsRouted(core, *target) && PlaceOf(core, *target).has_value())
    out.waits_for = WhyAway(core, *target);
  return out;
}

DoorBinding BindingFor(const Core& core, const std::string& name, const BindingRecord& record) {
  DoorBinding out{.name = name, .target = record.name, .digest = record.digest, .waits_for = {}};
  const Residency* target = core.Find(record.name);
  if (target != nullptr && !IsRouted(core, *target) && PlaceOf(core, *target).has_value())
    out.waits_for = WhyAway(core, *target);
  return out;
}

uint32_t FrameworkPauseMs(const Core& core) {
  return core.pause.by_framework ? static_cast<uint32_t>(core.config.framework_pause_ms) : 0;
}

DoorTable Build(const Core& core) {
  DoorTable table;
  table.revision = core.table.revision;
  table.boot = core.boot;
  table.engine = core.limits.kind;
  table.slots = core.limits.slots;
  table.lag_known = core.session && core.desired.has_value();
  table.awaits_desired = !core.desired.has_value();
  table.paused = IsPaused(core);
  table.asleep = IsAsleepOrToBe(core);
  table.updating = IsUpdatingOrTo(core);
  table.framework_pause_ms = FrameworkPauseMs(core);
  for (const auto& [adapter, row] : core.rows) table.rows.push_back(RowFor(core, adapter, row));
  for (const auto& [name, record] : core.bindings.by_name)
    table.bindings.push_back(BindingFor(core, name, record));
  for (const auto& [name, residency] : core.residencies) {
    if (!IsRouted(core, residency)) continue;
    const fleet::WantedVersion* wanted = residency.wanted;
    table.routes.push_back({name, residency.key, residency.digest, residency.render,
                            wanted != nullptr ? wanted->lag : fleet::kLagNone});
  }
  if (core.desired.has_value()) {
    table.aliases = core.desired->aliases;
    table.rules = core.desired->rules;
  }
  return table;
}

// Whether the table still says what it should. A residency is among its routes exactly while no
// table has closed it.
bool IsUpToDate(const Core& core) {
  const DoorTable& table = core.table;
  if (core.table_stale || table.revision.value == 0 || table.boot != core.boot ||
      table.engine != core.limits.kind || table.paused != IsPaused(core) ||
      table.asleep != IsAsleepOrToBe(core) || table.updating != IsUpdatingOrTo(core) ||
      table.slots != core.limits.slots || table.framework_pause_ms != FrameworkPauseMs(core) ||
      table.lag_known != (core.session && core.desired.has_value()) ||
      table.awaits_desired == core.desired.has_value() || table.rows.size() != core.rows.size() ||
      table.bindings.size() != core.bindings.by_name.size()) {
    return false;
  }
  size_t routes = 0;
  for (const auto& [name, residency] : core.residencies) {
    const bool is_routed = IsRouted(core, residency);
    if (is_routed != (residency.closed_at.value == 0)) return false;
    if (is_routed) ++routes;
  }
  if (routes != table.routes.size()) return false;  // one of them is gone altogether
  auto bound = table.bindings.begin();
  for (const auto& [name, record] : core.bindings.by_name) {
    if (*bound++ != BindingFor(core, name, record)) return false;
  }
  auto said = table.rows.begin();
  return std::all_of(core.rows.begin(), core.rows.end(), [&](const auto& entry) {
    return *said++ == RowFor(core, entry.first, entry.second);
  });
}

}  // namespace

void HandleReport(Core& core, const DoorReport& event) {
  if (event.revision < core.reported) return;
  if (event.sequence != 0 && event.sequence <= core.report_sequence) return;
  core.reported = event.revision;
  core.report_sequence = event.sequence;
  core.in_flight = event.in_flight;
  core.by_name = event.by_name;
  core.waiting = event.waiting;
  core.last_admitted = event.last_admitted;
  core.live_low = std::min(core.live_low, core.LiveRequests());
}

void AdvanceDoor(Core& core) {
  if (IsUpToDate(core)) return;
  core.table_stale = false;
  DoorTable table = Build(core);
  if (table != core.table || core.table.revision.value == 0) {
    table.revision = Revision(core.table.revision.value + 1);
    core.table = std::move(table);
    core.effects.push_back(SetDoorTable{core.table});
  }
  for (auto& [name, residency] : core.residencies) {
    if (IsRouted(core, residency)) {
      residency.closed_at = Revision();
    } else if (residency.closed_at.value == 0) {
      residency.closed_at = core.table.revision;
    }
  }
  if (!core.table.asleep && !core.table.updating) {
    core.memory.shut_at = Revision();
  } else if (core.memory.shut_at.value == 0) {
    core.memory.shut_at = core.table.revision;
  }
  for (auto& [adapter, row] : core.rows) {
    if (ModeOf(row) == fleet::RowMode::kOpen) {
      row.was_open = true;
      row.shut_at = Revision();
    } else if (row.shut_at.value == 0) {
      row.shut_at = core.table.revision;
    }
  }
}

}  // namespace lorry::proxy
