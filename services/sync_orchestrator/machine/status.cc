#include "services/sync_orchestrator/machine/status.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/catalogue.h"
#include "services/sync_orchestrator/machine/desired.h"
#include "services/sync_orchestrator/machine/progress.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/slots.h"
#include "services/sync_orchestrator/machine/trials.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

std::string Line(const MemberStatus& status) {
  std::string line =
      absl::StrCat("member ", status.member.value, " ", std::string(ToString(status.standing)));
  if (!status.reason.empty()) absl::StrAppend(&line, "(", status.reason, ")");
  absl::StrAppend(&line, status.current ? " current" : " behind",
                  " boot=", status.observed.boot.value);
  for (const fleet::ObservedRow& row : status.observed.rows) {
    absl::StrAppend(&line, " ", row.adapter.value, ":", std::string(fleet::ToString(row.mode)), "(",
                    row.epoch.value, ")", row.target.empty() ? "" : "=", row.target.value);
  }
  for (const fleet::ObservedResidency& residency : status.observed.residencies) {
    absl::StrAppend(&line, " [", residency.name.value, " ",
                    std::string(fleet::ToString(residency.state)),
                    residency.reason.empty() ? "" : " ", residency.reason, "]");
  }
  return line;
}

std::string Line(const PoolStatus& status) {
  std::string line = absl::StrCat("pool ", status.adapter.value, "/", status.pool.value, " ",
                                  std::string(ToString(status.phase)));
  if (status.committed.has_value()) {
    absl::StrAppend(&line, " committed=", ToString(status.committed->version.key), "@",
                    status.committed->epoch.value);
  }
  if (status.sync.has_value()) {
    absl::StrAppend(&line, " syncing=", ToString(status.sync->version.key), "@",
                    status.sync->epoch.value);
    for (const SyncMember& part : status.sync->members) {
      if (part.dropped == Drop::kNone) continue;
      absl::StrAppend(&line, " ", part.member.value, "-", ToAbsl(ToString(part.dropped)));
    }
  }
  for (const VersionKey& key : status.pending) absl::StrAppend(&line, " waiting=", ToString(key));
  if (status.override_to.has_value())
    absl::StrAppend(&line, " override=", ToString(*status.override_to));
  if (!status.waits_for.empty()) absl::StrAppend(&line, " ", status.waits_for);
  if (status.last_decision.has_value() && !status.last_decision->commit) {
    absl::StrAppend(&line, " aborted=", status.last_decision->epoch.value, ":",
                    ToAbsl(ToString(status.last_decision->why)));
  }
  return line;
}

bool IsWithheld(const Member& member, const fleet::ObservedResidency& residency) {
  const auto part = member.desired.parts.find(residency.key.adapter);
  return part != member.desired.parts.end() &&
         std::ranges::any_of(part->second->wanted, [&](const fleet::WantedVersion& wanted) {
           return wanted.name == residency.name && wanted.must && !wanted.load;
         });
}

// What the member reported last. Where it does not load a version because another member tries it
// first, its proxy does not know that, so the reason is added here.
fleet::Observed Seen(const Core& core, const Member& member) {
  fleet::Observed observed = *member.observed;
  if (StandingOf(core, member) != MemberStanding::kReady) return observed;  // which says why
  for (fleet::ObservedResidency& residency : observed.residencies) {
    const bool says_nothing =
        residency.state == fleet::ResidencyState::kFetched && residency.reason.empty();
    if (!says_nothing || !IsWithheld(member, residency)) continue;
    residency.reason = "TRIED_ELSEWHERE";
    residency.detail = WhoTries(core, member, residency.key);
  }
  return observed;
}

}  // namespace

std::string_view ToString(SyncPhase phase) {
  switch (phase) {
    case SyncPhase::kIdle:
      return "IDLE";
    case SyncPhase::kStaging:
      return "STAGING";
    case SyncPhase::kHolding:
      return "HOLDING";
    case SyncPhase::kLocking:
      return "LOCKING";
  }
  return "IDLE";
}

Status Machine::GetStatus() const {
  const Core& core = *state_;
  Status status;
  status.term = core.meta.term;
  status.store_known = core.store_known;
  status.footing = core.footing;
  std::map<PoolName, SlotDemand> demands;
  for (const auto& [id, member] : core.members) {
    MemberStatus& out = status.members.emplace_back();
    out.member = id;
    out.pool = member.record.pool;
    out.standing = StandingOf(core, member);
    out.reason = StandingReason(core, member);
    out.current = IsCurrent(member);
    if (member.observed.has_value()) out.observed = Seen(core, member);
    out.heard_at = member.heard_at;
    out.contact = member.contact;
    if (member.observed.has_value() && !member.record.dead) {
      const auto [demand, is_new] = demands.try_emplace(out.pool);
      if (is_new) demand->second = DemandOf(core, out.pool);
      out.slot_need = NeedOf(demand->second, out.observed.limits);
    }
  }
  for (const auto& [id, pool] : core.pools) {
    PoolStatus& out = status.pools.emplace_back();
    out.adapter = id.adapter;
    out.pool = id.pool;
    out.phase = PhaseOf(pool);
    if (const Activation* committed = pool.committed()) out.committed = *committed;
    out.history = pool.record.history;
    out.sync = pool.sync;
    out.pending = pool.record.pending;
    if (pool.sync.has_value()) {
      out.about = pool.sync->version.key;
    } else if (!pool.record.pending.empty()) {
      out.about = pool.record.pending.back();
    } else if (pool.wait != Wait::kNothing) {
      if (const VersionInfo* newest = NewestOf(core, id.adapter)) out.about = newest->key;
    }
    const VersionInfo* about = out.about.has_value() ? core.FindVersion(*out.about) : nullptr;
    const Sights sights = about != nullptr ? Look(core, id, *about) : Sights();
    if (about != nullptr) out.progress = ProgressOf(core, id, *about, sights);
    out.override_to = pool.record.override_to;
    out.waits_for = ToString(pool.wait);
    out.detail = pool.sync.has_value() ? TroublesOf(core, pool, sights) : pool.detail;
    out.is_blocked = pool.wait != Wait::kNothing && pool.wait != Wait::kOverridden &&
                     pool.wait != Wait::kNextVersion;
    out.last_decision = pool.decision;
  }
  for (const auto& [key, lease] : core.leases) {
    status.leases.push_back({lease.record, lease.expires_at - core.now});
  }
  for (const auto& [key, record] : core.verdicts) {
    for (const auto& [group, verdict] : record.groups) {
      if (std::string why = ExplainBarred(core, verdict); !why.empty())
        status.verdicts.push_back({key, group, verdict.verdict, std::move(why)});
    }
  }
  return status;
}

std::string Machine::Describe() const {
  const Status status = GetStatus();
  const std::string lost(ToString(status.footing));
  std::string text =
      absl::StrCat("term ", ToString(status.term), lost.empty() ? "" : " ", lost, "\n");
  for (const PoolStatus& pool : status.pools) absl::StrAppend(&text, Line(pool), "\n");
  for (const MemberStatus& member : status.members) absl::StrAppend(&text, Line(member), "\n");
  for (const auto& [lease, left_ms] : status.leases) {
    absl::StrAppend(&text, "lease ", ToString(lease.version.key), " ", lease.holder, "\n");
  }
  for (const VerdictStatus& bar : status.verdicts) {
    absl::StrAppend(&text, "verdict ", ToString(bar.version), " ", ToAbsl(ToString(bar.verdict)),
                    " on ", bar.group.value, "\n");
  }
  return text;
}

}  // namespace lorry::sync
