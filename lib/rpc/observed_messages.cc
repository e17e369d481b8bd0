// Observed: what a member reports.
#include <utility>

#include "lib/base/error.h"
#include "lib/base/utf8.h"
#include "lib/rpc/fleet_messages.h"
#include "lib/rpc/fleet_parts.h"

namespace lorry::rpc {
namespace {

namespace pb = lorry::sync::v1;

// Reasons and details are sentences; longer ones are cut. Some are of engines: one that is no UTF-8
// must not take the whole report with it.
std::string Words(std::string_view words) { return Utf8(words, 4096); }

constexpr std::array kStates{
    std::pair{fleet::ResidencyState::kAbsent, pb::RESIDENCY_STATE_UNSPECIFIED},
    std::pair{fleet::ResidencyState::kFetching, pb::RESIDENCY_STATE_FETCHING},
    std::pair{fleet::ResidencyState::kFetched, pb::RESIDENCY_STATE_FETCHED},
    std::pair{fleet::ResidencyState::kLoading, pb::RESIDENCY_STATE_LOADING},
    std::pair{fleet::ResidencyState::kLoaded, pb::RESIDENCY_STATE_LOADED},
    std::pair{fleet::ResidencyState::kUnloading, pb::RESIDENCY_STATE_UNLOADING},
    std::pair{fleet::ResidencyState::kFailed, pb::RESIDENCY_STATE_FAILED}};
constexpr std::array kFailures{
    std::pair{fleet::Failure::kNone, pb::RESIDENCY_FAILURE_UNSPECIFIED},
    std::pair{fleet::Failure::kMember, pb::RESIDENCY_FAILURE_MEMBER},
    std::pair{fleet::Failure::kRefused, pb::RESIDENCY_FAILURE_REFUSED},
    std::pair{fleet::Failure::kEngineHung, pb::RESIDENCY_FAILURE_ENGINE_HUNG},
    std::pair{fleet::Failure::kMisfit, pb::RESIDENCY_FAILURE_MISFIT}};
constexpr std::array kHealths{std::pair{fleet::MemberHealth::kJoining, pb::MEMBER_HEALTH_JOINING},
                              std::pair{fleet::MemberHealth::kReady, pb::MEMBER_HEALTH_READY},
                              std::pair{fleet::MemberHealth::kAsleep, pb::MEMBER_HEALTH_ASLEEP},
                              std::pair{fleet::MemberHealth::kWedged, pb::MEMBER_HEALTH_WEDGED}};

pb::EngineLimits LimitsToProto(const fleet::EngineLimits& limits) {
  pb::EngineLimits out;
  out.set_kind(ToWire(kKinds, limits.kind));
  out.set_rank_limit(limits.rank_limit);
  out.set_slots(limits.slots);
  out.set_batch_slots(limits.batch_slots);
  for (const std::string& module : limits.engine_modules) out.add_modules(module);
  return out;
}

absl::StatusOr<fleet::EngineLimits> LimitsFromProto(const pb::EngineLimits& limits) {
  LORRY_RETURN_IF_ERROR(CheckCount(limits.modules_size(), "modules"));
  fleet::EngineLimits out;
  LORRY_ASSIGN_OR_RETURN(out.kind, ToPlain(kKinds, limits.kind(), "EngineLimits.kind"));
  out.rank_limit = limits.rank_limit();
  out.slots = limits.slots();
  out.batch_slots = limits.batch_slots();
  out.engine_modules.assign(limits.modules().begin(), limits.modules().end());
  return out;
}

pb::BaseModel BaseToProto(const peft::BaseModel& base) {
  pb::BaseModel out;
  out.set_architecture(base.architecture);
  out.set_complete(base.complete);
  out.set_hidden_size(base.hidden_size);
  out.set_layers(base.layers);
  out.set_intermediate_size(base.intermediate_size);
  out.set_heads(base.heads);
  out.set_kv_heads(base.kv_heads);
  out.set_head_dim(base.head_dim);
  out.set_vocab_size(base.vocab_size);
  out.set_experts(base.experts);
  out.set_expert_intermediate_size(base.expert_intermediate_size);
  out.set_shared_expert_intermediate_size(base.shared_expert_intermediate_size);
  out.set_quantization(base.quantization);
  out.set_revision(base.revision);
  return out;
}

peft::BaseModel BaseFromProto(const pb::BaseModel& base) {
  return {.architecture = Words(base.architecture()),
          .hidden_size = base.hidden_size(),
          .layers = base.layers(),
          .complete = base.complete(),
          .intermediate_size = base.intermediate_size(),
          .heads = base.heads(),
          .kv_heads = base.kv_heads(),
          .head_dim = base.head_dim(),
          .vocab_size = base.vocab_size(),
          .experts = base.experts(),
          .expert_intermediate_size = base.expert_intermediate_size(),
          .shared_expert_intermediate_size = base.shared_expert_intermediate_size(),
          .quantization = Words(base.quantization()),
          .revision = Words(base.revision())};
}

pb::ObservedRow RowToProto(const fleet::ObservedRow& row) {
  pb::ObservedRow out;
  out.set_adapter(row.adapter.value);
  out.set_mode(ToWire(kRowModes, row.mode));
  out.set_epoch(row.epoch.value);
  out.set_target(row.target.value);
  out.set_incarnation(row.incarnation);
  out.set_barrier(row.barrier.value);
  out.set_revoked(row.revoked.value);
  out.set_waits_for(Words(row.waits_for));
  return out;
}

absl::StatusOr<fleet::ObservedRow> RowFromProto(const pb::ObservedRow& row) {
  fleet::ObservedRow out;
  LORRY_ASSIGN_OR_RETURN(out.adapter, AdapterOf(row.adapter()));
  LORRY_ASSIGN_OR_RETURN(out.mode, ToPlain(kRowModes, row.mode(), "ObservedRow.mode"));
  out.epoch = Epoch(row.epoch());
  LORRY_ASSIGN_OR_RETURN(out.target, EngineOf(row.target(), true));
  out.incarnation = row.incarnation();
  out.barrier = Epoch(row.barrier());
  out.revoked = Epoch(row.revoked());
  out.waits_for = Words(row.waits_for());
  return out;
}

pb::ObservedResidency ResidencyToProto(const fleet::ObservedResidency& residency) {
  pb::ObservedResidency out;
  out.set_engine_name(residency.name.value);
  *out.mutable_version() = ToProto(residency.key);
  out.set_state(ToProto(residency.state));
  out.set_reason(Words(residency.reason));
  out.set_detail(Words(residency.detail));
  out.set_bytes_done(residency.bytes_done);
  out.set_bytes_total(residency.bytes_total);
  out.set_in_flight(residency.in_flight);
  out.set_count_known(residency.count_known);
  out.set_failure(ToWire(kFailures, residency.failure));
  out.set_no_slot(residency.no_slot);
  if (residency.gap.has_value()) {
    out.mutable_gap()->set_mean_ppm(residency.gap->mean_ppm);
    out.mutable_gap()->set_max_ppm(residency.gap->max_ppm);
  }
  return out;
}

// What an older proxy does not say, or a newer one says in words of its own, blames no version.
fleet::Failure FailureOf(fleet::ResidencyState state, pb::ResidencyFailure failure) {
  if (state != fleet::ResidencyState::kFailed) return fleet::Failure::kNone;
  const fleet::Failure* known = FindPlain(kFailures, failure);
  return known == nullptr || *known == fleet::Failure::kNone ? fleet::Failure::kMember : *known;
}

absl::StatusOr<fleet::ObservedResidency> ResidencyFromProto(
    const pb::ObservedResidency& residency) {
  fleet::ObservedResidency out;
  LORRY_ASSIGN_OR_RETURN(out.name, EngineOf(residency.engine_name(), false));
  LORRY_ASSIGN_OR_RETURN(out.key, FromProto(residency.version()));
  LORRY_ASSIGN_OR_RETURN(out.state, ToPlain(kStates, residency.state(), "ObservedResidency.state"));
  out.reason = Words(residency.reason());
  out.detail = Words(residency.detail());
  out.bytes_done = residency.bytes_done();
  out.bytes_total = residency.bytes_total();
  out.in_flight = residency.in_flight();
  out.count_known = residency.count_known();
  out.failure = FailureOf(out.state, residency.failure());
  out.no_slot = out.state == fleet::ResidencyState::kFetched && residency.no_slot();
  if (residency.has_gap()) out.gap = {residency.gap().mean_ppm(), residency.gap().max_ppm()};
  return out;
}

pb::Killer KillerToProto(const fleet::Killer& killer) {
  pb::Killer out;
  out.set_engine_name(killer.name.value);
  out.set_deaths(killer.deaths);
  return out;
}

absl::StatusOr<fleet::Killer> KillerFromProto(const pb::Killer& killer) {
  fleet::Killer out;
  LORRY_ASSIGN_OR_RETURN(out.name, EngineOf(killer.engine_name(), false));
  out.deaths = killer.deaths();
  return out;
}

}  // namespace

pb::ResidencyState ToProto(fleet::ResidencyState state) { return ToWire(kStates, state); }

pb::Observed ToProto(const fleet::Observed& observed) {
  pb::Observed out;
  out.set_journal_id(observed.journal.value);
  out.set_boot_id(observed.boot.value);
  *out.mutable_term() = ToProto(observed.term);
  out.set_revision(observed.revision.value);
  out.set_health(ToWire(kHealths, observed.health));
  out.set_health_detail(Words(observed.health_detail));
  *out.mutable_limits() = LimitsToProto(observed.limits);
  out.set_engine_version(Words(observed.engine_version));
  for (const fleet::ObservedRow& row : observed.rows) *out.add_rows() = RowToProto(row);
  for (const fleet::ObservedResidency& residency : observed.residencies) {
    *out.add_residencies() = ResidencyToProto(residency);
  }
  if (observed.paused.has_value()) *out.mutable_paused() = PauseToProto(*observed.paused);
  for (const fleet::Killer& killer : observed.killers) *out.add_killers() = KillerToProto(killer);
  out.set_sequence(observed.sequence);
  out.set_leaves(observed.leaves);
  if (observed.base_model.has_value()) {
    *out.mutable_base_model() = BaseToProto(*observed.base_model);
  }
  return out;
}

absl::StatusOr<fleet::Observed> FromProto(const pb::Observed& observed) {
  fleet::Observed out;
  out.journal = JournalId(observed.journal_id());
  out.boot = BootId(observed.boot_id());
  out.term = FromProto(observed.term());
  out.revision = Revision(observed.revision());
  LORRY_ASSIGN_OR_RETURN(out.health, ToPlain(kHealths, observed.health(), "Observed.health"));
  out.health_detail = Words(observed.health_detail());
  LORRY_ASSIGN_OR_RETURN(out.limits, LimitsFromProto(observed.limits()));
  out.engine_version = Words(observed.engine_version());
  LORRY_RETURN_IF_ERROR(ReadAll(observed.rows(), "rows", RowFromProto, out.rows));
  LORRY_RETURN_IF_ERROR(
      ReadAll(observed.residencies(), "residencies", ResidencyFromProto, out.residencies));
  if (observed.has_paused()) {
    LORRY_ASSIGN_OR_RETURN(out.paused, PauseFromProto(observed.paused()));
  }
  LORRY_RETURN_IF_ERROR(ReadAll(observed.killers(), "killers", KillerFromProto, out.killers));
  out.sequence = observed.sequence();
  out.leaves = observed.leaves();
  if (observed.has_base_model()) out.base_model = BaseFromProto(observed.base_model());
  return out;
}

}  // namespace lorry::rpc
