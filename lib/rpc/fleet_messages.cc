#include "lib/rpc/fleet_messages.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::rpc {
namespace {

namespace pb = lorry::sync::v1;
namespace cm = lorry::common::v1;

// More adapters, versions or aliases than any engine was seen to hold; beyond it a document is an
// attack or a bug.
constexpr int kEntriesMax = 10'000;
constexpr size_t kTextBytesMax = 4096;

absl::Status Bad(std::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID", what);
}

// Enumerations as tables: one row a value, both directions, nothing forgotten in one of them.
template <typename Plain, typename Wire, size_t N>
Wire ToWire(const std::array<std::pair<Plain, Wire>, N>& table, Plain value) {
  for (const auto& [plain, wire] : table)
    if (plain == value) return wire;
  return Wire{};
}

template <typename Plain, typename Wire, size_t N>
absl::StatusOr<Plain> ToPlain(const std::array<std::pair<Plain, Wire>, N>& table, Wire value,
                              std::string_view what) {
  for (const auto& [plain, wire] : table)
    if (wire == value) return plain;
  return Bad(absl::StrCat(ToAbsl(what), " has an unknown value ", static_cast<int>(value)));
}

constexpr std::array kKinds{std::pair{fleet::EngineKind::kUnknown, pb::ENGINE_KIND_UNSPECIFIED},
                            std::pair{fleet::EngineKind::kSglang, pb::ENGINE_KIND_SGLANG},
                            std::pair{fleet::EngineKind::kVllm, pb::ENGINE_KIND_VLLM}};
constexpr std::array kModes{std::pair{fleet::RowMode::kClosed, pb::ROW_MODE_CLOSED},
                            std::pair{fleet::RowMode::kOpen, pb::ROW_MODE_OPEN},
                            std::pair{fleet::RowMode::kHeld, pb::ROW_MODE_HELD},
                            std::pair{fleet::RowMode::kLocked, pb::ROW_MODE_LOCKED}};
constexpr std::array kRenders{std::pair{fleet::Render::kPlain, pb::RENDER_PLAIN},
                              std::pair{fleet::Render::kRsloraFolded, pb::RENDER_RSLORA_FOLDED}};
constexpr std::array kStales{std::pair{fleet::StaleAction::kRefuse, cm::STALE_MODE_REFUSE},
                             std::pair{fleet::StaleAction::kHold, cm::STALE_MODE_HOLD},
                             std::pair{fleet::StaleAction::kTag, cm::STALE_MODE_TAG}};
constexpr std::array kNoAdapters{
    std::pair{fleet::NoAdapterAction::kRefuse, cm::NO_ADAPTER_MODE_REFUSE},
    std::pair{fleet::NoAdapterAction::kLatest, cm::NO_ADAPTER_MODE_LATEST},
    std::pair{fleet::NoAdapterAction::kBase, cm::NO_ADAPTER_MODE_BASE}};
constexpr std::array kPauses{std::pair{fleet::PauseKind::kNone, pb::PAUSE_KIND_UNSPECIFIED},
                             std::pair{fleet::PauseKind::kAbort, pb::PAUSE_KIND_ABORT},
                             std::pair{fleet::PauseKind::kRetract, pb::PAUSE_KIND_RETRACT},
                             std::pair{fleet::PauseKind::kInPlace, pb::PAUSE_KIND_IN_PLACE},
                             std::pair{fleet::PauseKind::kWait, pb::PAUSE_KIND_WAIT},
                             std::pair{fleet::PauseKind::kKeep, pb::PAUSE_KIND_KEEP},
                             std::pair{fleet::PauseKind::kDrain, pb::PAUSE_KIND_DRAIN}};
constexpr std::array kStates{
    std::pair{fleet::ResidencyState::kAbsent, pb::RESIDENCY_STATE_UNSPECIFIED},
    std::pair{fleet::ResidencyState::kFetching, pb::RESIDENCY_STATE_FETCHING},
    std::pair{fleet::ResidencyState::kFetched, pb::RESIDENCY_STATE_FETCHED},
    std::pair{fleet::ResidencyState::kLoading, pb::RESIDENCY_STATE_LOADING},
    std::pair{fleet::ResidencyState::kLoaded, pb::RESIDENCY_STATE_LOADED},
    std::pair{fleet::ResidencyState::kUnloading, pb::RESIDENCY_STATE_UNLOADING},
    std::pair{fleet::ResidencyState::kFailed, pb::RESIDENCY_STATE_FAILED}};
constexpr std::array kHealths{std::pair{fleet::MemberHealth::kJoining, pb::MEMBER_HEALTH_JOINING},
                              std::pair{fleet::MemberHealth::kReady, pb::MEMBER_HEALTH_READY},
                              std::pair{fleet::MemberHealth::kAsleep, pb::MEMBER_HEALTH_ASLEEP},
                              std::pair{fleet::MemberHealth::kWedged, pb::MEMBER_HEALTH_WEDGED}};

absl::StatusOr<AdapterName> Adapter(const std::string& name) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(name));
  return AdapterName(name);
}

absl::StatusOr<EngineName> Engine(const std::string& name, bool may_be_empty) {
  if (name.empty() ? !may_be_empty : name.size() > 128)
    return Bad("an engine name is missing or too long");
  return EngineName(name);
}

absl::Status CheckCount(int count, std::string_view what) {
  if (count <= kEntriesMax) return absl::OkStatus();
  return Bad(
      absl::StrCat(count, " ", ToAbsl(what), " in one document, the limit is ", kEntriesMax));
}

pb::Pause PauseToProto(const fleet::DesiredPause& pause) {
  pb::Pause out;
  out.set_kind(ToWire(kPauses, pause.kind));
  out.set_deadline_ms(pause.deadline_ms);
  out.set_flush(pause.flush);
  return out;
}

absl::StatusOr<fleet::DesiredPause> PauseFromProto(const pb::Pause& pause) {
  fleet::DesiredPause out;
  LORRY_ASSIGN_OR_RETURN(out.kind, ToPlain(kPauses, pause.kind(), "Pause.kind"));
  out.deadline_ms = pause.deadline_ms();
  out.flush = pause.flush();
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
  out.set_probe_token(wanted.probe_token);
  out.set_load(wanted.load);
  out.set_leased(wanted.leased);
  return out;
}

absl::StatusOr<fleet::WantedVersion> WantedFromProto(const pb::WantedVersion& wanted) {
  fleet::WantedVersion out;
  LORRY_ASSIGN_OR_RETURN(out.name, Engine(wanted.engine_name(), false));
  LORRY_ASSIGN_OR_RETURN(out.key, FromProto(wanted.version()));
  if (wanted.digest().empty() || wanted.digest().size() > 128)
    return Bad("a digest is missing or too long");
  out.digest = Digest{wanted.digest()};
  LORRY_ASSIGN_OR_RETURN(out.traits, FromProto(wanted.traits()));
  LORRY_ASSIGN_OR_RETURN(out.render, ToPlain(kRenders, wanted.render(), "WantedVersion.render"));
  out.must = wanted.must();
  out.eviction_rank = wanted.eviction_rank();
  out.lag = wanted.has_lag() ? wanted.lag() : fleet::kLagNone;
  out.probe_token = wanted.probe_token();
  out.load = wanted.load();
  out.leased = wanted.leased();
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
  return out;
}

absl::StatusOr<fleet::DoorRules> RulesFromProto(const pb::DoorRules& rules) {
  fleet::DoorRules out;
  LORRY_ASSIGN_OR_RETURN(out.adapter, Adapter(rules.adapter()));
  out.current_run = RunId(rules.current_run());
  out.max_staleness = rules.max_staleness();
  LORRY_ASSIGN_OR_RETURN(out.stale, ToPlain(kStales, rules.stale(), "DoorRules.stale"));
  LORRY_ASSIGN_OR_RETURN(out.no_adapter,
                         ToPlain(kNoAdapters, rules.no_adapter(), "DoorRules.no_adapter"));
  out.hold_limit_ms = rules.hold_limit_ms();
  return out;
}

}  // namespace

cm::VersionRef ToProto(const VersionKey& key) {
  cm::VersionRef out;
  out.set_adapter(key.adapter.value);
  out.set_run(key.run.value);
  out.set_number(key.number.value);
  return out;
}

absl::StatusOr<VersionKey> FromProto(const cm::VersionRef& ref) {
  LORRY_ASSIGN_OR_RETURN(AdapterName adapter, Adapter(ref.adapter()));
  return VersionKey{std::move(adapter), RunId(ref.run()), VersionNumber(ref.number())};
}

cm::VersionTraits ToProto(const fleet::VersionTraits& traits) {
  cm::VersionTraits out;
  out.set_rank_max(traits.rank_max);
  out.set_rslora(traits.rslora);
  out.set_rank_or_alpha_pattern(traits.rank_or_alpha_pattern);
  out.set_partial_groups(traits.partial_groups);
  out.set_all_b_zero(traits.all_b_zero);
  for (const std::string& module : traits.modules) out.add_modules(module);
  return out;
}

absl::StatusOr<fleet::VersionTraits> FromProto(const cm::VersionTraits& traits) {
  LORRY_RETURN_IF_ERROR(CheckCount(traits.modules_size(), "modules"));
  fleet::VersionTraits out;
  out.rank_max = traits.rank_max();
  out.rslora = traits.rslora();
  out.rank_or_alpha_pattern = traits.rank_or_alpha_pattern();
  out.partial_groups = traits.partial_groups();
  out.all_b_zero = traits.all_b_zero();
  out.modules.assign(traits.modules().begin(), traits.modules().end());
  std::sort(out.modules.begin(), out.modules.end());
  return out;
}

pb::Term ToProto(const Term& term) {
  pb::Term out;
  out.set_incarnation(term.incarnation);
  out.set_term(term.term);
  return out;
}

Term FromProto(const pb::Term& term) { return Term{term.incarnation(), term.term()}; }

pb::EngineKind ToProto(fleet::EngineKind kind) { return ToWire(kKinds, kind); }

pb::Desired ToProto(const fleet::Desired& desired) {
  pb::Desired out;
  *out.mutable_term() = ToProto(desired.term);
  out.set_revision(desired.revision.value);
  out.set_journal_id(desired.journal.value);
  out.set_boot_id(desired.boot.value);
  for (const fleet::DesiredRow& row : desired.rows) {
    pb::DesiredRow& r = *out.add_rows();
    r.set_adapter(row.adapter.value);
    r.set_mode(ToWire(kModes, row.mode));
    r.set_epoch(row.epoch.value);
    r.set_target(row.target.value);
    r.set_hold_for_ms(row.hold_for_ms);
    r.set_serve_old(row.serve_old);
  }
  for (const fleet::WantedVersion& wanted : desired.wanted)
    *out.add_wanted() = WantedToProto(wanted);
  for (const fleet::AliasRoute& alias : desired.aliases) {
    pb::AliasRoute& a = *out.add_aliases();
    a.set_adapter(alias.adapter.value);
    a.set_alias(alias.alias.value);
    a.set_target(alias.target.value);
  }
  for (const fleet::DoorRules& rules : desired.rules) *out.add_rules() = RulesToProto(rules);
  if (desired.pause.has_value()) *out.mutable_pause() = PauseToProto(*desired.pause);
  return out;
}

absl::StatusOr<fleet::Desired> FromProto(const pb::Desired& desired) {
  LORRY_RETURN_IF_ERROR(CheckCount(desired.rows_size(), "rows"));
  LORRY_RETURN_IF_ERROR(CheckCount(desired.wanted_size(), "wanted versions"));
  LORRY_RETURN_IF_ERROR(CheckCount(desired.aliases_size(), "aliases"));
  LORRY_RETURN_IF_ERROR(CheckCount(desired.rules_size(), "rules"));
  fleet::Desired out;
  out.term = FromProto(desired.term());
  out.revision = Revision(desired.revision());
  out.journal = JournalId(desired.journal_id());
  out.boot = BootId(desired.boot_id());
  for (const pb::DesiredRow& row : desired.rows()) {
    fleet::DesiredRow r;
    LORRY_ASSIGN_OR_RETURN(r.adapter, Adapter(row.adapter()));
    LORRY_ASSIGN_OR_RETURN(r.mode, ToPlain(kModes, row.mode(), "DesiredRow.mode"));
    r.epoch = Epoch(row.epoch());
    LORRY_ASSIGN_OR_RETURN(r.target, Engine(row.target(), r.mode != fleet::RowMode::kOpen));
    r.hold_for_ms = row.hold_for_ms();
    r.serve_old = row.serve_old();
    out.rows.push_back(std::move(r));
  }
  for (const pb::WantedVersion& wanted : desired.wanted()) {
    LORRY_ASSIGN_OR_RETURN(fleet::WantedVersion w, WantedFromProto(wanted));
    out.wanted.push_back(std::move(w));
  }
  for (const pb::AliasRoute& alias : desired.aliases()) {
    fleet::AliasRoute a;
    LORRY_ASSIGN_OR_RETURN(a.adapter, Adapter(alias.adapter()));
    LORRY_RETURN_IF_ERROR(CheckName("the alias", alias.alias()));
    a.alias = AliasName(alias.alias());
    LORRY_ASSIGN_OR_RETURN(a.target, Engine(alias.target(), false));
    out.aliases.push_back(std::move(a));
  }
  for (const pb::DoorRules& rules : desired.rules()) {
    LORRY_ASSIGN_OR_RETURN(fleet::DoorRules r, RulesFromProto(rules));
    out.rules.push_back(std::move(r));
  }
  if (desired.has_pause()) {
    LORRY_ASSIGN_OR_RETURN(out.pause, PauseFromProto(desired.pause()));
  }
  return out;
}

pb::Observed ToProto(const fleet::Observed& observed) {
  pb::Observed out;
  out.set_journal_id(observed.journal.value);
  out.set_boot_id(observed.boot.value);
  *out.mutable_term() = ToProto(observed.term);
  out.set_revision(observed.revision.value);
  out.set_health(ToWire(kHealths, observed.health));
  out.set_health_detail(observed.health_detail);
  pb::EngineLimits& limits = *out.mutable_limits();
  limits.set_kind(ToWire(kKinds, observed.limits.kind));
  limits.set_rank_limit(observed.limits.rank_limit);
  limits.set_slots(observed.limits.slots);
  limits.set_batch_slots(observed.limits.batch_slots);
  for (const std::string& module : observed.limits.engine_modules) limits.add_modules(module);
  out.set_engine_version(observed.engine_version);
  for (const fleet::ObservedRow& row : observed.rows) {
    pb::ObservedRow& r = *out.add_rows();
    r.set_adapter(row.adapter.value);
    r.set_mode(ToWire(kModes, row.mode));
    r.set_epoch(row.epoch.value);
    r.set_target(row.target.value);
    r.set_hold_revoked(row.hold_revoked);
  }
  for (const fleet::ObservedResidency& residency : observed.residencies) {
    pb::ObservedResidency& r = *out.add_residencies();
    r.set_engine_name(residency.name.value);
    *r.mutable_version() = ToProto(residency.key);
    r.set_state(ToWire(kStates, residency.state));
    r.set_reason(residency.reason);
    r.set_detail(residency.detail);
    r.set_bytes_done(residency.bytes_done);
    r.set_bytes_total(residency.bytes_total);
    r.set_in_flight(residency.in_flight);
    r.set_count_known(residency.count_known);
  }
  if (observed.paused.has_value()) *out.mutable_paused() = PauseToProto(*observed.paused);
  for (const fleet::Killer& killer : observed.killers) {
    pb::Killer& k = *out.add_killers();
    k.set_engine_name(killer.name.value);
    k.set_deaths(killer.deaths);
  }
  out.set_sequence(observed.sequence);
  return out;
}

absl::StatusOr<fleet::Observed> FromProto(const pb::Observed& observed) {
  LORRY_RETURN_IF_ERROR(CheckCount(observed.rows_size(), "rows"));
  LORRY_RETURN_IF_ERROR(CheckCount(observed.residencies_size(), "residencies"));
  LORRY_RETURN_IF_ERROR(CheckCount(observed.killers_size(), "killers"));
  LORRY_RETURN_IF_ERROR(CheckCount(observed.limits().modules_size(), "modules"));
  fleet::Observed out;
  out.journal = JournalId(observed.journal_id());
  out.boot = BootId(observed.boot_id());
  out.term = FromProto(observed.term());
  out.revision = Revision(observed.revision());
  LORRY_ASSIGN_OR_RETURN(out.health, ToPlain(kHealths, observed.health(), "Observed.health"));
  out.health_detail = observed.health_detail().substr(0, kTextBytesMax);
  LORRY_ASSIGN_OR_RETURN(out.limits.kind,
                         ToPlain(kKinds, observed.limits().kind(), "EngineLimits.kind"));
  out.limits.rank_limit = observed.limits().rank_limit();
  out.limits.slots = observed.limits().slots();
  out.limits.batch_slots = observed.limits().batch_slots();
  out.limits.engine_modules.assign(observed.limits().modules().begin(),
                                   observed.limits().modules().end());
  out.engine_version = observed.engine_version().substr(0, kTextBytesMax);
  for (const pb::ObservedRow& row : observed.rows()) {
    fleet::ObservedRow r;
    LORRY_ASSIGN_OR_RETURN(r.adapter, Adapter(row.adapter()));
    LORRY_ASSIGN_OR_RETURN(r.mode, ToPlain(kModes, row.mode(), "ObservedRow.mode"));
    r.epoch = Epoch(row.epoch());
    LORRY_ASSIGN_OR_RETURN(r.target, Engine(row.target(), true));
    r.hold_revoked = row.hold_revoked();
    out.rows.push_back(std::move(r));
  }
  for (const pb::ObservedResidency& residency : observed.residencies()) {
    fleet::ObservedResidency r;
    LORRY_ASSIGN_OR_RETURN(r.name, Engine(residency.engine_name(), false));
    LORRY_ASSIGN_OR_RETURN(r.key, FromProto(residency.version()));
    LORRY_ASSIGN_OR_RETURN(r.state, ToPlain(kStates, residency.state(), "ObservedResidency.state"));
    r.reason = residency.reason().substr(0, kTextBytesMax);
    r.detail = residency.detail().substr(0, kTextBytesMax);
    r.bytes_done = residency.bytes_done();
    r.bytes_total = residency.bytes_total();
    r.in_flight = residency.in_flight();
    r.count_known = residency.count_known();
    out.residencies.push_back(std::move(r));
  }
  if (observed.has_paused()) {
    LORRY_ASSIGN_OR_RETURN(out.paused, PauseFromProto(observed.paused()));
  }
  for (const pb::Killer& killer : observed.killers()) {
    LORRY_ASSIGN_OR_RETURN(EngineName name, Engine(killer.engine_name(), false));
    out.killers.push_back({std::move(name), killer.deaths()});
  }
  out.sequence = observed.sequence();
  return out;
}

}  // namespace lorry::rpc
