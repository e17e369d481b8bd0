#include "services/sync_orchestrator/machine/holds.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lib/fleet/held.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/verdicts.h"
#include "services/sync_orchestrator/machine/waiting.h"

namespace lorry::sync {
namespace {

// In the order of need, as there may be too many: aliases, whose versions the store keeps anyhow, are
// the first to be left out, and then what engines keep of old versions.
std::set<VersionKey> WhatToHold(const Core& core) {
  std::set<VersionKey> holds;
  const auto hold = [&](const VersionKey& key) {
    if (holds.size() < fleet::kHeldVersionsMax) holds.insert(key);
  };
  struct Window {
    const std::vector<Activation>& history;
    size_t size;
  };
  std::vector<Window> windows;
  size_t longest = 0;
  for (const auto& [id, pool] : core.pools) {
    if (pool.sync.has_value()) hold(pool.sync->version.key);
    const fleet::AdapterPolicy* policy = core.FindPolicy(id);
    if (policy == nullptr) continue;  // its record stays, and nobody is served by it
    const std::vector<Activation>& history = pool.record.history;
    windows.push_back({history, std::min<size_t>(history.size(), policy->KeepCount())});
    longest = std::max(longest, windows.back().size);
    // What is given up may be deleted.
    const auto hold_next = [&, id = id](const VersionKey& key) {
      if (GivenUp(core, id, key) == nullptr) hold(key);
    };
    for (const VersionKey& key : pool.record.pending) hold_next(key);
    if (pool.record.override_to.has_value()) hold_next(*pool.record.override_to);
    if (const std::optional<Candidate> next = CandidateOf(core, id)) hold_next(next->version.key);
  }
  for (const auto& [key, lease] : core.leases) hold(lease.record.version.key);
  // The windows that engines keep: what lies behind is the store's own to keep or to delete.
  for (size_t lag = 0; lag < longest; ++lag) {
    for (const Window& window : windows) {
      if (lag < window.size) hold(window.history[window.history.size() - 1 - lag].version.key);
    }
  }
  for (const auto& [id, pool] : core.pools) {
    if (core.FindPolicy(id) == nullptr) continue;
    for (const Pool::SharedPart& shared : pool.parts) {
      for (const fleet::WantedVersion& wanted : shared.part->wanted) hold(wanted.key);
    }
  }
  for (const auto& [alias, target] : core.aliases) {
    if (core.FindAdapter(alias.first) != nullptr) hold(target);
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
