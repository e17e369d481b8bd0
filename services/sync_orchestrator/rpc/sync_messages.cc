#include "services/sync_orchestrator/rpc/sync_messages.h"

#include <algorithm>

#include "lib/rpc/fleet_messages.h"

namespace lorry::sync {
namespace {

// Status names so many leases; each pool counts all of its own.
constexpr int kLeasesShown = 256;

v1::SyncState StateOf(WatchEvent::State state) {
  switch (state) {
    case WatchEvent::State::kWaiting:
      return v1::SYNC_STATE_WAITING;
    case WatchEvent::State::kStaging:
      return v1::SYNC_STATE_STAGING;
    case WatchEvent::State::kHolding:
      return v1::SYNC_STATE_HOLDING;
    case WatchEvent::State::kLocking:
      return v1::SYNC_STATE_LOCKING;
    case WatchEvent::State::kCommitted:
      return v1::SYNC_STATE_COMMITTED;
    case WatchEvent::State::kActive:
      return v1::SYNC_STATE_ACTIVE;
    case WatchEvent::State::kSuperseded:
      return v1::SYNC_STATE_SUPERSEDED;
    case WatchEvent::State::kFailed:
      return v1::SYNC_STATE_FAILED;
    case WatchEvent::State::kStored:
      return v1::SYNC_STATE_STORED;
  }
  return v1::SYNC_STATE_UNSPECIFIED;
}

v1::SyncState StateOf(SyncPhase phase) {
  switch (phase) {
    case SyncPhase::kIdle:
      return v1::SYNC_STATE_WAITING;
    case SyncPhase::kStaging:
      return v1::SYNC_STATE_STAGING;
    case SyncPhase::kHolding:
      return v1::SYNC_STATE_HOLDING;
    case SyncPhase::kLocking:
      return v1::SYNC_STATE_LOCKING;
  }
  return v1::SYNC_STATE_UNSPECIFIED;
}

void AddProgress(const std::vector<MemberProgress>& progress, v1::WatchSyncResponse& out) {
  for (const MemberProgress& its : progress) {
    v1::MemberProgress& one = *out.add_progress();
    one.set_member(its.member.value);
    one.set_state(rpc::ToProto(its.state));
    one.set_bytes_done(its.bytes_done);
    one.set_bytes_total(its.bytes_total);
    one.set_active(its.active);
    one.set_dropped(its.dropped);
  }
}

void FillMember(const MemberStatus& member, Tick now, v1::MemberStatus& out) {
  out.set_member(member.member.value);
  out.set_pool(member.pool.value);
  out.set_state(std::string(ToString(member.standing)));
  out.set_detail(member.reason.empty() ? member.observed.health_detail : member.reason);
  *out.mutable_observed() = rpc::ToProto(member.observed);
  v1::SlotNeed& need = *out.mutable_slot_need();
  need.set_needed(member.slot_need.needed);
  need.set_kept(member.slot_need.kept);
  need.set_shortage(member.slot_need.shortage);
  need.set_batch_cost(member.slot_need.batch_cost);
  out.set_door_address(member.contact.door_address);
  out.set_admin_address(member.contact.admin_address);
  out.set_admin_tls_name(member.contact.admin_tls_name);
  out.set_lorry_version(member.contact.lorry_version);
  if (member.heard_at != 0) out.set_observed_age_ms(now - member.heard_at);
}

void FillPool(const PoolStatus& pool, const Status& status,
              const std::map<AdapterName, VersionKey>& newest, v1::PoolStatus& out) {
  out.set_adapter(pool.adapter.value);
  out.set_pool(pool.pool.value);
  if (pool.committed.has_value()) {
    out.set_epoch(pool.committed->epoch.value);
    *out.mutable_latest() = rpc::ToProto(pool.committed->version.key);
  }
  if (const auto it = newest.find(pool.adapter); it != newest.end())
    *out.mutable_newest() = rpc::ToProto(it->second);
  for (auto it = pool.history.rbegin(); it != pool.history.rend(); ++it) {
    *out.add_history() = rpc::ToProto(it->version.key);
  }
  if (pool.about.has_value()) {
    *out.mutable_running_version() = rpc::ToProto(*pool.about);
    v1::WatchSyncResponse& running = *out.mutable_running();
    running.set_state(StateOf(pool.phase));
    running.set_reason(pool.waits_for);
    running.set_detail(pool.detail);
    AddProgress(pool.progress, running);
  }
  if (pool.override_to.has_value()) *out.mutable_override() = rpc::ToProto(*pool.override_to);
  for (const VerdictStatus& verdict : status.verdicts) {
    if (verdict.version.adapter != pool.adapter) continue;
    if (verdict.verdict == Verdict::kPoisoned) *out.add_poisoned() = rpc::ToProto(verdict.version);
    v1::VersionVerdict& told = *out.add_verdicts();
    *told.mutable_version() = rpc::ToProto(verdict.version);
    told.set_verdict(std::string(ToString(verdict.verdict)));
    told.set_engines(verdict.group.value);
    told.set_detail(verdict.words);
  }
  out.set_leases(static_cast<uint32_t>(
      std::count_if(status.leases.begin(), status.leases.end(), [&](const LeaseStatus& lease) {
        return lease.record.pool == pool.pool && lease.record.version.key.adapter == pool.adapter;
      })));
}

// Drops what a member says of other adapters.
void KeepOnly(const std::string& adapter, v1::Observed& observed) {
  auto& rows = *observed.mutable_rows();
  rows.erase(std::remove_if(rows.begin(), rows.end(),
                            [&](const v1::ObservedRow& row) { return row.adapter() != adapter; }),
             rows.end());
  auto& residencies = *observed.mutable_residencies();
  residencies.erase(std::remove_if(residencies.begin(), residencies.end(),
                                   [&](const v1::ObservedResidency& residency) {
                                     return residency.version().adapter() != adapter;
                                   }),
                    residencies.end());
}

bool Wanted(const std::string& filter, const std::string& value) {
  return filter.empty() || filter == value;
}

}  // namespace

Contact ContactOf(const v1::Hello& hello) {
  return {.door_address = hello.door_address(),
          .admin_address = hello.admin_address(),
          .admin_tls_name = hello.admin_tls_name(),
          .lorry_version = hello.lorry_version()};
}

v1::WatchSyncResponse ToProto(const WatchEvent& event, const PhaseTimes& times) {
  v1::WatchSyncResponse out;
  out.set_state(StateOf(event.state));
  out.set_epoch(event.epoch.value);
  out.set_active(event.done);
  out.set_members(event.members);
  out.set_reason(event.reason);
  out.set_detail(event.detail);
  if (event.state == WatchEvent::State::kSuperseded)
    *out.mutable_superseded_by() = rpc::ToProto(event.superseded_by);
  AddProgress(event.progress, out);
  out.mutable_times()->set_wait_ms(times.wait_ms);
  out.mutable_times()->set_stage_ms(times.stage_ms);
  out.mutable_times()->set_commit_ms(times.commit_ms);
  out.mutable_times()->set_activate_ms(times.activate_ms);
  return out;
}

v1::GetStatusResponse ToProto(const Status& status, const std::map<AdapterName, VersionKey>& newest,
                              const std::string& pool, const std::string& adapter, Tick now) {
  v1::GetStatusResponse out;
  *out.mutable_term() = rpc::ToProto(status.term);
  out.set_lost(std::string(ToString(status.footing)));
  out.set_lost_detail(std::string(Explain(status.footing)));
  for (const MemberStatus& member : status.members) {
    if (!Wanted(pool, member.pool.value)) continue;
    v1::MemberStatus& shown = *out.add_members();
    FillMember(member, now, shown);
    if (!adapter.empty()) KeepOnly(adapter, *shown.mutable_observed());
  }
  for (const PoolStatus& p : status.pools) {
    if (Wanted(pool, p.pool.value) && Wanted(adapter, p.adapter.value))
      FillPool(p, status, newest, *out.add_pools());
  }
  for (const auto& [lease, left_ms] : status.leases) {
    if (out.leases_size() == kLeasesShown) break;
    if (!Wanted(pool, lease.pool.value) || !Wanted(adapter, lease.version.key.adapter.value))
      continue;
    v1::LeaseStatus& shown = *out.add_leases();
    *shown.mutable_version() = rpc::ToProto(lease.version.key);
    shown.set_pool(lease.pool.value);
    shown.set_holder(lease.holder);
    shown.set_left_ms(left_ms);
  }
  return out;
}

}  // namespace lorry::sync
