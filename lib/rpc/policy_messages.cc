#include "lib/rpc/policy_messages.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/fleet/quiesce.h"
#include "lib/fleet/window.h"
#include "lib/rpc/enum_table.h"

namespace lorry::rpc {
namespace {

namespace cm = lorry::common::v1;

// A day: longer deadlines are mistakes of unit.
constexpr int64_t kDeadlineMsMax = 86'400'000;
// Of what is read. What is set is bounded by fleet::kWindowMax, which earlier releases did not ask for.
constexpr uint32_t kKeepMax = 1'000;
constexpr int kPoolsMax = 100;
// Nats: beyond it no two models differ that are worth comparing.
constexpr double kProbeGapMax = 100;

absl::Status Invalid(std::string_view what) {
  return Error(absl::StatusCode::kInvalidArgument, "POLICY_INVALID", what);
}

// The first row is the default, which UNSPECIFIED (0) stands for.
constexpr std::array kModes{std::pair{fleet::SyncMode::kRolling, cm::SYNC_MODE_ROLLING},
                            std::pair{fleet::SyncMode::kBarrier, cm::SYNC_MODE_BARRIER}};
constexpr std::array kSkips{std::pair{fleet::SkipMode::kAllowed, cm::SKIP_MODE_ALLOWED},
                            std::pair{fleet::SkipMode::kNever, cm::SKIP_MODE_NEVER}};
constexpr std::array kQuiesces{std::pair{fleet::PauseKind::kNone, cm::QUIESCE_MODE_NONE},
                               std::pair{fleet::PauseKind::kAbort, cm::QUIESCE_MODE_ABORT},
                               std::pair{fleet::PauseKind::kRetract, cm::QUIESCE_MODE_RETRACT},
                               std::pair{fleet::PauseKind::kInPlace, cm::QUIESCE_MODE_IN_PLACE},
                               std::pair{fleet::PauseKind::kWait, cm::QUIESCE_MODE_WAIT},
                               std::pair{fleet::PauseKind::kKeep, cm::QUIESCE_MODE_KEEP},
                               std::pair{fleet::PauseKind::kDrain, cm::QUIESCE_MODE_DRAIN}};
constexpr std::array kFlushes{std::pair{fleet::FlushMode::kAuto, cm::FLUSH_MODE_AUTO},
                              std::pair{fleet::FlushMode::kAlways, cm::FLUSH_MODE_ALWAYS},
                              std::pair{fleet::FlushMode::kNever, cm::FLUSH_MODE_NEVER}};

constexpr std::array kResidencies{
    std::pair{fleet::ResidencyMode::kResident, cm::RESIDENCY_MODE_RESIDENT},
    std::pair{fleet::ResidencyMode::kOnDemand, cm::RESIDENCY_MODE_ON_DEMAND}};

template <typename Plain, typename Wire, size_t N>
absl::Status Read(const EnumTable<Plain, Wire, N>& table, Wire value, std::string_view field,
                  Plain& out) {
  if (static_cast<int>(value) == 0) value = table.front().second;
  if (const Plain* plain = FindPlain(table, value)) {
    out = *plain;
    return absl::OkStatus();
  }
  return Invalid(absl::StrCat(ToAbsl(field), " has an unknown value ", static_cast<int>(value),
                              "; this server may be older than the client"));
}

absl::Status ReadDeadline(bool set, int64_t value, std::string_view field, int64_t& out) {
  if (!set) return absl::OkStatus();
  if (value < 1 || value > kDeadlineMsMax) {
    return Invalid(
        absl::StrCat(ToAbsl(field), " is ", value, " ms; it must be 1 to ", kDeadlineMsMax));
  }
  out = value;
  return absl::OkStatus();
}

absl::Status ReadPools(const cm::AdapterPolicy& policy, fleet::AdapterPolicy& out) {
  if (policy.pools_size() == 0) return absl::OkStatus();
  if (policy.pools_size() > kPoolsMax)
    return Invalid(absl::StrCat("more than ", kPoolsMax, " pools"));
  out.pools.clear();
  for (const cm::PoolRule& rule : policy.pools()) {
    LORRY_RETURN_IF_ERROR(CheckName("the pool", rule.pool()));
    fleet::PoolSource source;
    if (rule.has_other_pool()) {
      LORRY_RETURN_IF_ERROR(CheckName("the followed pool", rule.other_pool()));
      source = {.kind = fleet::PoolSource::Kind::kPool, .pool = PoolName(rule.other_pool())};
    } else if (rule.has_alias()) {
      LORRY_RETURN_IF_ERROR(CheckName("the followed alias", rule.alias()));
      source = {.kind = fleet::PoolSource::Kind::kAlias, .alias = AliasName(rule.alias())};
    }
    if (!out.pools.emplace(PoolName(rule.pool()), source).second) {
      return Invalid(absl::StrCat("pool ", rule.pool(), " is named twice; name it once"));
    }
  }
  for (const auto& [name, source] : out.pools) {
    if (source.kind != fleet::PoolSource::Kind::kPool) continue;
    const auto followed = out.pools.find(source.pool);
    if (followed == out.pools.end() || followed->second.kind == fleet::PoolSource::Kind::kPool) {
      return Invalid(
          absl::StrCat("pool ", name.value, " follows ", source.pool.value,
                       ", which must be a pool of this policy that follows no other pool"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadCounts(const cm::AdapterPolicy& policy, fleet::AdapterPolicy& out) {
  if (policy.has_max_staleness()) out.max_staleness = policy.max_staleness();
  if (out.max_staleness >= kKeepMax)
    return Invalid(absl::StrCat("max_staleness must be below ", fleet::kWindowMax));
  if (policy.keep().has_versions()) {
    out.keep = {.kind = fleet::KeepRule::Kind::kCount, .count = policy.keep().versions()};
    if (out.keep.count < 1 || out.keep.count > kKeepMax) {
      return Invalid(absl::StrCat("keep is ", out.keep.count, "; it must be 1 to ",
                                  fleet::kWindowMax, ", or all"));
    }
  } else if (policy.keep().all()) {
    out.keep = {.kind = fleet::KeepRule::Kind::kAll};
  }
  if (out.KeepCount() < out.max_staleness + 1) {
    return Invalid(absl::StrCat(
        "keep ", out.KeepCount(), " is less than max_staleness + 1 = ", out.max_staleness + 1,
        ": versions that may still be asked for would be gone; raise keep"));
  }
  const cm::MinEngines& min = policy.min_engines();
  if (min.has_count()) out.min_engines = {.is_share = false, .value = min.count()};
  if (min.has_percent()) out.min_engines = {.is_share = true, .value = min.percent()};
  if (out.min_engines.value < 1 || (out.min_engines.is_share && out.min_engines.value > 100)) {
    return Invalid("min_engines must be a count of at least 1 or 1 to 100 percent");
  }
  return absl::OkStatus();
}

absl::Status ReadRules(const cm::AdapterPolicy& policy, fleet::AdapterPolicy& out) {
  LORRY_RETURN_IF_ERROR(Read(kModes, policy.mode(), "mode", out.mode));
  LORRY_RETURN_IF_ERROR(Read(kSkips, policy.skip(), "skip", out.skip));
  LORRY_RETURN_IF_ERROR(Read(kInFlights, policy.in_flight(), "in_flight", out.in_flight));
  LORRY_RETURN_IF_ERROR(Read(kStales, policy.stale(), "stale", out.stale));
  LORRY_RETURN_IF_ERROR(Read(kNoAdapters, policy.no_adapter(), "no_adapter", out.no_adapter));
  LORRY_RETURN_IF_ERROR(Read(kQuiesces, policy.quiesce(), "quiesce", out.quiesce));
  LORRY_RETURN_IF_ERROR(Read(kFlushes, policy.flush(), "flush", out.flush));
  LORRY_RETURN_IF_ERROR(Read(kProbes, policy.probe(), "probe", out.probe));
  LORRY_RETURN_IF_ERROR(Read(kResidencies, policy.residency(), "residency", out.residency));
  if (!policy.has_probe_gap()) return absl::OkStatus();
  const double gap = policy.probe_gap();
  if (!(gap >= 0 && gap <= kProbeGapMax))
    return Invalid(absl::StrCat("probe_gap is ", gap, " nats; it must be 0 to ", kProbeGapMax));
  out.probe_gap_ppm = static_cast<uint32_t>(std::lround(gap * 1e6));
  return absl::OkStatus();
}

absl::Status ReadDeadlines(const cm::AdapterPolicy& policy, fleet::AdapterPolicy& out) {
  LORRY_RETURN_IF_ERROR(ReadDeadline(policy.has_stage_deadline_ms(), policy.stage_deadline_ms(),
                                     "stage_deadline_ms", out.stage_deadline_ms));
  LORRY_RETURN_IF_ERROR(ReadDeadline(policy.has_barrier_deadline_ms(), policy.barrier_deadline_ms(),
                                     "barrier_deadline_ms", out.barrier_deadline_ms));
  LORRY_RETURN_IF_ERROR(ReadDeadline(policy.has_drain_deadline_ms(), policy.drain_deadline_ms(),
                                     "drain_deadline_ms", out.drain_deadline_ms));
  LORRY_RETURN_IF_ERROR(ReadDeadline(policy.has_demand_wait_ms(), policy.demand_wait_ms(),
                                     "demand_wait_ms", out.demand_wait_ms));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<fleet::AdapterPolicy> PolicyFromProto(const cm::AdapterPolicy& policy) {
  fleet::AdapterPolicy out;
  LORRY_RETURN_IF_ERROR(ReadPools(policy, out));
  LORRY_RETURN_IF_ERROR(ReadCounts(policy, out));
  LORRY_RETURN_IF_ERROR(ReadRules(policy, out));
  LORRY_RETURN_IF_ERROR(ReadDeadlines(policy, out));
  out.norm_limit = policy.max_tensor_norm();
  out.quota_bytes = policy.quota_bytes();
  out.quota_versions = policy.quota_versions();
  if (policy.has_store_keep()) out.store_keep = policy.store_keep();
  return out;
}

absl::Status CheckMaySet(const fleet::AdapterPolicy& policy) {
  // What is older than the window is forgotten, and unloaded whatever the policy says.
  if (policy.max_staleness >= fleet::kWindowMax) {
    return Invalid(absl::StrCat("max_staleness is ", policy.max_staleness, "; it must be below ",
                                fleet::kWindowMax, ", as a pool remembers its last ",
                                fleet::kWindowMax, " decisions"));
  }
  if (policy.keep.kind == fleet::KeepRule::Kind::kCount && policy.keep.count > fleet::kWindowMax) {
    return Invalid(absl::StrCat("keep is ", policy.keep.count, "; it must be 1 to ",
                                fleet::kWindowMax, ", as a pool remembers its last ",
                                fleet::kWindowMax, " decisions; lease what must stay longer"));
  }
  const std::string why = fleet::WhyNotTogether(policy);
  return why.empty() ? absl::OkStatus() : Invalid(why);
}

cm::AdapterPolicy PolicyToProto(const fleet::AdapterPolicy& policy) {
  cm::AdapterPolicy out;
  for (const auto& [name, source] : policy.pools) {
    cm::PoolRule& rule = *out.add_pools();
    rule.set_pool(name.value);
    if (source.kind == fleet::PoolSource::Kind::kPool) rule.set_other_pool(source.pool.value);
    if (source.kind == fleet::PoolSource::Kind::kAlias) rule.set_alias(source.alias.value);
  }
  out.set_mode(ToWire(kModes, policy.mode));
  if (policy.min_engines.is_share) {
    out.mutable_min_engines()->set_percent(policy.min_engines.value);
  } else {
    out.mutable_min_engines()->set_count(policy.min_engines.value);
  }
  out.set_skip(ToWire(kSkips, policy.skip));
  out.set_in_flight(ToWire(kInFlights, policy.in_flight));
  out.set_max_staleness(policy.max_staleness);
  if (policy.keep.kind == fleet::KeepRule::Kind::kAll) {
    out.mutable_keep()->set_all(true);
  } else {
    out.mutable_keep()->set_versions(policy.KeepCount());
  }
  out.set_stale(ToWire(kStales, policy.stale));
  out.set_no_adapter(ToWire(kNoAdapters, policy.no_adapter));
  out.set_quiesce(ToWire(kQuiesces, policy.quiesce));
  out.set_flush(ToWire(kFlushes, policy.flush));
  out.set_probe(ToWire(kProbes, policy.probe));
  out.set_probe_gap(policy.probe_gap_ppm / 1e6);
  out.set_stage_deadline_ms(policy.stage_deadline_ms);
  out.set_barrier_deadline_ms(policy.barrier_deadline_ms);
  out.set_drain_deadline_ms(policy.drain_deadline_ms);
  out.set_residency(ToWire(kResidencies, policy.residency));
  out.set_demand_wait_ms(policy.demand_wait_ms);
  out.set_max_tensor_norm(policy.norm_limit);
  out.set_quota_bytes(policy.quota_bytes);
  out.set_quota_versions(policy.quota_versions);
  if (policy.store_keep.has_value()) out.set_store_keep(*policy.store_keep);
  return out;
}

}  // namespace lorry::rpc
