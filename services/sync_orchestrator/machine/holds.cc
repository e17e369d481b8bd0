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

struct ByKey {
  bool operator()(const VersionKey* a, const VersionKey* b) const { return *a < *b; }
};
// They belong to the state: most looks find what was held before, and copy nothing.
using Needed = std::set<const VersionKey*, ByKey>;

// In the order of need, as there may be too many: aliases, whose versions the store keeps anyhow, are
// the first to be left out, and then what engines keep of old versions.
Needed WhatToHold(const Core& core) {
  Needed holds;
  const auto hold = [&](const VersionKey& key) {
    if (holds.size() < fleet::kHeldVersionsMax) holds.insert(&key);
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
    if (const std::optional<Candidate> next = CandidateOf(core, id, pool, *policy))
      hold_next(next->version.key);
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

HeldFor WhatItIsFor(const Pool& pool) {
  const Epoch decided = pool.decision.has_value() ? pool.decision->epoch : Epoch();
  return {pool.record.epoch, decided, pool.record.override_to};
}

bool IsHeld(const Core& core, const Needed& holds) {
  const bool same = std::ranges::equal(
      holds, core.holds,
      [](const VersionKey* key, const VersionKey& held) { return *key == held; });
  return same &&
         std::ranges::equal(core.pools, core.holds_for, [](const auto& is, const auto& was) {
           return is.first == was.first && WhatItIsFor(is.second) == was.second;
         });
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
  const Needed holds = WhatToHold(core);
  if (!overdue && !first && IsHeld(core, holds)) return;
  core.holds_for.clear();
  for (const auto& [id, pool] : core.pools)
    core.holds_for.emplace_hint(core.holds_for.end(), id, WhatItIsFor(pool));
  // Each is counted before it is sent, and by no leader but the one whose records these are: the
  // store tells a stale leader's set by its number, and this leader from its own older records.
  core.holds_revision = core.holds_record.sent = Revision(core.holds_record.sent.value + 1);
  core.SaveQuietly(HoldsKey(), core.holds_record);
  std::set<VersionKey> keys;
  for (const VersionKey* key : holds) keys.insert(keys.end(), *key);
  core.holds = std::move(keys);
  std::erase_if(core.held, [&](const VersionKey& key) { return !core.holds.contains(key); });
  core.holds_sent[core.holds_revision] = core.holds;
  if (core.holds_sent.size() > kHoldsSentLimit) core.holds_sent.erase(core.holds_sent.begin());
  core.holds_sent_at = core.now;
  core.effects.emplace_back(SetHolds{{core.meta.term.incarnation, core.holds_revision},
                                     {core.holds.begin(), core.holds.end()}});
}

}  // namespace lorry::sync
