// Compares what the planners find by looking at what has changed with what a look at everything
// finds.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "services/sync_orchestrator/machine/plan.h"
#include "services/sync_orchestrator/machine/roster.h"
#include "services/sync_orchestrator/machine/watches.h"

namespace lorry::sync {
namespace {

void LookAtEverything(Core& core) {
  core.dirty.clear();
  core.effects.clear();
  core.replies.clear();
  core.unsaid.clear();
  core.changed.All();
  for (auto& [id, pool] : core.pools) {
    pool.tally = {};
    core.sync_due.Set(id, core.now);
  }
  for (const auto& [key, lease] : core.leases) core.lease_due.Set(key, core.now);
  for (const auto& [id, watch] : core.watches) core.watch_due.Set(id, core.now);
}

std::string Missed(const Core& before, const Effect& effect) {
  if (std::holds_alternative<SetHolds>(effect)) return "the store should keep other versions";
  if (const auto* notify = std::get_if<NotifyWatch>(&effect)) {
    const WatchState& watch = before.watches.at(notify->watch);
    // What members change waits for its pace; that all of them serve a decision does not.
    const bool waits = watch.more_to_tell && notify->event.state != WatchEvent::State::kActive;
    if (waits || (watch.last.has_value() && SaysTheSame(*watch.last, notify->event))) return "";
    return absl::StrCat("watch ", notify->watch, " should be told");
  }
  return "an effect";
}

std::string WhoWasMissed(const Core& core) {
  for (const auto& [id, member] : core.members) {
    if (core.expected.contains(id) != IsExpected(core, member))
      return absl::StrCat("whether member ", id.value, " is expected");
  }
  return "";
}

// What is still kept of something that is gone, though nothing will ever remove it.
std::string WhatStays(const Core& core) {
  const auto is_gone = [&](const VersionKey& key) {
    return core.FindVersion(key) == nullptr && !core.deleted.contains(key);
  };
  for (const auto& [key, name] : core.names) {
    if (is_gone(key.first)) return absl::StrCat("name ", name.value, " of nothing");
  }
  if (core.names.size() != core.named.size()) return "names of nothing";
  for (const auto& [key, verdict] : core.verdicts) {
    if (is_gone(key)) return absl::StrCat("verdict on ", ToString(key), ", which is gone");
  }
  for (const auto& [id, pool] : core.pools) {
    if (!core.adapters.contains(id.adapter))
      return absl::StrCat("pool ", id.pool.value, " of adapter ", id.adapter.value,
                          ", which is gone");
  }
  size_t wanted = 0;
  for (const auto& [id, member] : core.members) {
    wanted += member.desired.parts.size();
    if (member.record.dead && !member.desired.parts.empty())
      return absl::StrCat("member ", id.value, " is DEAD, and something is desired of it");
  }
  for (const auto& [id, pool] : core.pools) {
    for (const Pool::SharedPart& shared : pool.parts) wanted -= shared.members;
  }
  return wanted == 0 ? "" : "parts of documents that nobody has";
}

std::string Compare(const PoolId& id, const Pool& was, const Pool& is) {
  const std::string name = absl::StrCat(id.adapter.value, "/", id.pool.value);
  if (was.wait != is.wait || was.detail != is.detail)
    return absl::StrCat(name, " waits for ", ToAbsl(ToString(is.wait)), ": ", is.detail,
                        ", and not for ", ToAbsl(ToString(was.wait)), ": ", was.detail);
  if (was.tally != is.tally)
    return absl::StrCat(name, ": ", is.tally.loaded, " of ", is.tally.remaining,
                        " have the version, ", was.tally.loaded, " of ", was.tally.remaining,
                        " were counted");
  if (was.barrier != is.barrier) return absl::StrCat(name, ": other doors are waited for");
  return "";
}

}  // namespace

std::string WhatWasMissed(const Core& core) {
  if (std::string missed = WhoWasMissed(core); !missed.empty()) return missed;
  if (core.footing != Footing::kSettled) return "";
  if (std::string stays = WhatStays(core); !stays.empty()) return stays;
  Core all = core;
  LookAtEverything(all);
  Plan(all);
  for (const auto& [key, value] : all.dirty)
    return absl::StrCat("record ", key, ": ", value.has_value() ? Encode(*value) : "none");
  if (!all.unsaid.empty())
    return absl::StrCat("member ", all.unsaid.begin()->value, " should be sent another document");
  for (const Effect& effect : all.effects) {
    if (std::string missed = Missed(core, effect); !missed.empty()) return missed;
  }
  for (const auto& [id, pool] : core.pools) {
    const auto is = all.pools.find(id);
    if (is == all.pools.end()) return "a pool is gone";
    if (std::string missed = Compare(id, pool, is->second); !missed.empty()) return missed;
  }
  const bool same_trials =
      std::ranges::equal(core.trials, all.trials, [](const auto& a, const auto& b) {
        return a.first == b.first && a.second.tries == b.second.tries;
      });
  return same_trials ? "" : "others may try a version";
}

}  // namespace lorry::sync
