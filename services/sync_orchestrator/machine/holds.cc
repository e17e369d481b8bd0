#include "services/sync_orchestrator/machine/holds.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/waiting.h"

namespace lorry::sync {
namespace {

std::set<VersionKey> WhatToHold(const Core& core) {
  std::set<VersionKey> holds;
  for (const auto& [id, pool] : core.pools) {
    if (pool.sync.has_value()) holds.insert(pool.sync->version.key);
    const fleet::AdapterPolicy* policy = core.FindPolicy(id);
    if (policy == nullptr) continue;  // its record stays, and nobody is served by it
    for (const Pool::SharedPart& shared : pool.parts) {
      for (const fleet::WantedVersion& wanted : shared.part->wanted) holds.insert(wanted.key);
    }
    // The window that engines keep: what lies behind it is the store's own to keep or to delete.
    const std::vector<Activation>& history = pool.record.history;
    const size_t window = std::min<size_t>(history.size(), policy->KeepCount());
    for (size_t i = history.size() - window; i < history.size(); ++i) {
      holds.insert(history[i].version.key);
    }
    // What is given up may be deleted.
    const auto hold = [&, id = id](const VersionKey& key) {
      if (GivenUp(core, id, key) == nullptr) holds.insert(key);
    };
    for (const VersionKey& key : pool.record.pending) hold(key);
    if (pool.record.override_to.has_value()) hold(*pool.record.override_to);
    if (const std::optional<Candidate> next = CandidateOf(core, id)) hold(next->version.key);
  }
  for (const auto& [key, lease] : core.leases) holds.insert(lease.record.version.key);
  for (const auto& [alias, target] : core.aliases) {
    if (core.FindAdapter(alias.first) != nullptr) holds.insert(target);
  }
  return holds;
}

std::map<PoolId, HeldFor> WhatItIsFor(const Core& core) {
  std::map<PoolId, HeldFor> out;
  for (const auto& [id, pool] : core.pools) {
    const Epoch decided = pool.decision.has_value() ? pool.decision->epoch : Epoch();
    out.emplace_hint(out.end(), id, HeldFor{pool.record.epoch, decided, pool.record.override_to});
  }
  return out;
}

}  // namespace

void AdvanceHolds(Core& core) {
  // Until the fleet was adopted the store keeps what the earlier reign named.
  if (core.footing != Footing::kSettled) return;
  const bool overdue = core.holds_acked != core.holds_revision &&
                       core.now - core.holds_sent_at >= core.config.resend_ms;
  const bool first = core.holds_revision.value == 0;
  const bool changed = std::exchange(core.changed.holds, false);
  if (!changed && !overdue && !first) return;
  std::set<VersionKey> holds = WhatToHold(core);
  auto holds_for = WhatItIsFor(core);
  if (holds == core.holds && holds_for == core.holds_for && !overdue && !first) return;
  core.holds_for = std::move(holds_for);
  // Each is counted before it is sent, and by no leader but the one whose records these are: the
  // store tells a stale leader's set by its number, and this leader from its own older records.
  core.holds_revision = core.holds_record.sent = Revision(core.holds_record.sent.value + 1);
  core.SaveQuietly(HoldsKey(), core.holds_record);
  core.holds = std::move(holds);
  std::erase_if(core.held, [&](const VersionKey& key) { return !core.holds.contains(key); });
  core.holds_sent[core.holds_revision] = core.holds;
  if (core.holds_sent.size() > kHoldsSentLimit) core.holds_sent.erase(core.holds_sent.begin());
  core.holds_sent_at = core.now;
  core.effects.emplace_back(SetHolds{{core.meta.term.incarnation, core.holds_revision},
                                     {core.holds.begin(), core.holds.end()}});
}

}  // namespace lorry::sync
