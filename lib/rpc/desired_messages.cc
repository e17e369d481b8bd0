// Desired: what the orchestrator wants of a member.
#include <utility>

#include "lib/base/error.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/fleet_parts.h"

namespace lorry::rpc {
namespace {

namespace cm = lorry::common::v1;
namespace pb = lorry::sync::v1;

pb::DesiredRow RowToProto(const fleet::DesiredRow& row) {
  pb::DesiredRow out;
  out.set_adapter(row.adapter.value);
  out.set_mode(ToWire(kRowModes, row.mode));
  out.set_epoch(row.epoch.value);
  out.set_target(row.target.value);
  out.set_hold_for_ms(row.hold_for_ms);
  out.set_serve_from(row.serve_from.value);
  if (row.quiesce != fleet::DesiredPause()) *out.mutable_quiesce() = PauseToProto(row.quiesce);
  return out;
}

absl::StatusOr<fleet::DesiredRow> RowFromProto(const pb::DesiredRow& row) {
  fleet::DesiredRow out;
  LORRY_ASSIGN_OR_RETURN(out.adapter, AdapterOf(row.adapter()));
  LORRY_ASSIGN_OR_RETURN(out.mode, ToPlain(kRowModes, row.mode(), "DesiredRow.mode"));
  out.epoch = Epoch(row.epoch());
  LORRY_ASSIGN_OR_RETURN(out.target, EngineOf(row.target(), out.mode != fleet::RowMode::kOpen));
  out.hold_for_ms = row.hold_for_ms();
  out.serve_from = Epoch(row.serve_from());
  LORRY_ASSIGN_OR_RETURN(out.quiesce, PauseFromProto(row.quiesce()));
  return out;
}

pb::WantedVersion WantedToProto(const fleet::WantedVersion& wanted) {
  pb::WantedVersion out;
  out.set_engine_name(wanted.name.value);
  *out.mutable_version() = ToProto(wanted.key);
  out.set_digest(wanted.digest.value);
  *out.mutable_traits() = ToProto(wanted.traits);
  out.set_render(ToWire(kRenders, wanted.render));
  out.set_must(wanted.must);
  out.set_eviction_rank(wanted.eviction_rank);
  if (wanted.lag != fleet::kLagNone) out.set_lag(wanted.lag);
  out.set_probe(ToWire(kProbes, wanted.probe));
  out.set_probe_gap_ppm(wanted.probe_gap_ppm);
  out.set_load(wanted.load);
  out.set_deaths_allowed(wanted.deaths_allowed);
  out.set_on_this_boot(wanted.on_this_boot);
  out.set_leased(wanted.leased);
  out.set_on_demand(wanted.on_demand);
  return out;
}

absl::StatusOr<fleet::WantedVersion> WantedFromProto(const pb::WantedVersion& wanted) {
  fleet::WantedVersion out;
  LORRY_ASSIGN_OR_RETURN(out.name, EngineOf(wanted.engine_name(), false));
  LORRY_ASSIGN_OR_RETURN(out.key, FromProto(wanted.version()));
  if (wanted.digest().empty() || wanted.digest().size() > 128)
    return BadMessage("a digest is missing or too long");
  out.digest = Digest{wanted.digest()};
  LORRY_ASSIGN_OR_RETURN(out.traits, FromProto(wanted.traits()));
  LORRY_ASSIGN_OR_RETURN(out.render, ToPlain(kRenders, wanted.render(), "WantedVersion.render"));
  out.must = wanted.must();
  out.eviction_rank = wanted.eviction_rank();
  out.lag = wanted.has_lag() ? wanted.lag() : fleet::kLagNone;
  out.probe = fleet::ProbeMode::kToken;  // of an orchestrator that does not know the field yet
  if (wanted.probe() != cm::PROBE_MODE_UNSPECIFIED) {
    LORRY_ASSIGN_OR_RETURN(out.probe, ToPlain(kProbes, wanted.probe(), "WantedVersion.probe"));
  }
  out.probe_gap_ppm = wanted.probe_gap_ppm();
  out.load = wanted.load();
  out.deaths_allowed = wanted.deaths_allowed();
  out.on_this_boot = wanted.on_this_boot();
  out.leased = wanted.leased();
  out.on_demand = wanted.on_demand();
  return out;
}

pb::DoorRules RulesToProto(const fleet::DoorRules& rules) {
  pb::DoorRules out;
  out.set_adapter(rules.adapter.value);
  out.set_current_run(rules.current_run.value);
  out.set_max_staleness(rules.max_staleness);
  out.set_stale(ToWire(kStales, rules.stale));
  out.set_no_adapter(ToWire(kNoAdapters, rules.no_adapter));
  out.set_hold_limit_ms(rules.hold_limit_ms);
  out.set_in_flight(ToWire(kInFlights, rules.in_flight));
  out.set_demand_wait_ms(rules.demand_wait_ms);
  return out;
}

absl::StatusOr<fleet::DoorRules> RulesFromProto(const pb::DoorRules& rules) {
  fleet::DoorRules out;
  LORRY_ASSIGN_OR_RETURN(out.adapter, AdapterOf(rules.adapter()));
  out.current_run = RunId(rules.current_run());
  out.max_staleness = rules.max_staleness();
  LORRY_ASSIGN_OR_RETURN(out.stale, ToPlain(kStales, rules.stale(), "DoorRules.stale"));
  LORRY_ASSIGN_OR_RETURN(out.no_adapter,
                         ToPlain(kNoAdapters, rules.no_adapter(), "DoorRules.no_adapter"));
  out.hold_limit_ms = rules.hold_limit_ms();
  if (rules.in_flight() != cm::IN_FLIGHT_MODE_UNSPECIFIED) {  // an older orchestrator's
    LORRY_ASSIGN_OR_RETURN(out.in_flight,
                           ToPlain(kInFlights, rules.in_flight(), "DoorRules.in_flight"));
  }
  if (rules.has_demand_wait_ms()) out.demand_wait_ms = rules.demand_wait_ms();
  return out;
}

pb::AliasRoute AliasToProto(const fleet::AliasRoute& alias) {
  pb::AliasRoute out;
  out.set_adapter(alias.adapter.value);
  out.set_alias(alias.alias.value);
  out.set_target(alias.target.value);
  return out;
}

absl::StatusOr<fleet::AliasRoute> AliasFromProto(const pb::AliasRoute& alias) {
  fleet::AliasRoute out;
  LORRY_ASSIGN_OR_RETURN(out.adapter, AdapterOf(alias.adapter()));
  LORRY_RETURN_IF_ERROR(CheckName("the alias", alias.alias()));
  out.alias = AliasName(alias.alias());
  LORRY_ASSIGN_OR_RETURN(out.target, EngineOf(alias.target(), false));
  return out;
}

}  // namespace

pb::Desired ToProto(const fleet::Desired& desired) {
  pb::Desired out;
  *out.mutable_term() = ToProto(desired.term);
  out.set_revision(desired.revision.value);
  out.set_journal_id(desired.journal.value);
  out.set_boot_id(desired.boot.value);
  for (const fleet::DesiredRow& row : desired.rows) *out.add_rows() = RowToProto(row);
  for (const fleet::WantedVersion& wanted : desired.wanted)
    *out.add_wanted() = WantedToProto(wanted);
  for (const fleet::AliasRoute& alias : desired.aliases) *out.add_aliases() = AliasToProto(alias);
  for (const fleet::DoorRules& rules : desired.rules) *out.add_rules() = RulesToProto(rules);
  return out;
}

absl::StatusOr<fleet::Desired> FromProto(const pb::Desired& desired) {
  fleet::Desired out;
  out.term = FromProto(desired.term());
  out.revision = Revision(desired.revision());
  out.journal = JournalId(desired.journal_id());
  out.boot = BootId(desired.boot_id());
  LORRY_RETURN_IF_ERROR(ReadAll(desired.rows(), "rows", RowFromProto, out.rows));
  LORRY_RETURN_IF_ERROR(ReadAll(desired.wanted(), "wanted versions", WantedFromProto, out.wanted));
  LORRY_RETURN_IF_ERROR(ReadAll(desired.aliases(), "aliases", AliasFromProto, out.aliases));
  LORRY_RETURN_IF_ERROR(ReadAll(desired.rules(), "rules", RulesFromProto, out.rules));
  return out;
}

}  // namespace lorry::rpc
