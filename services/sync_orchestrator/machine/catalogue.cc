#include "services/sync_orchestrator/machine/catalogue.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "lib/fleet/unknown_pool.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/verdicts.h"

namespace lorry::sync {
namespace {

void Refuse(Pool& pool, const VersionKey& key) {
  pool.record.refused.push_back(key);
  if (pool.record.refused.size() > kRefusedLimit) {
    pool.record.refused.erase(pool.record.refused.begin());
  }
}

// Makes room for the last `came`, which nobody has counted on yet. A version that is given up has
// nothing to wait for, and goes first; then the oldest of these, so that the pool comes to the
// newest of many that were stored while it took its versions from elsewhere.
void MakeRoom(const Core& core, const PoolId& id, Pool& pool, std::ptrdiff_t came) {
  std::vector<VersionKey>& pending = pool.record.pending;
  while (came > 0 && pending.size() > core.config.backlog_limit) {
    const auto first = pending.end() - came;
    const auto out = std::find_if(pending.begin(), first, [&](const VersionKey& key) {
      return GivenUp(core, id, key) != nullptr;
    });
    if (out == first) {
      Refuse(pool, *out);
      --came;
    }
    pending.erase(out);
  }
}

// `stored` is not empty.
void Queue(const Core& core, const fleet::AdapterPolicy& policy, const PoolId& id, Pool& pool,
           const std::vector<VersionKey>& stored) {
  std::vector<VersionKey>& pending = pool.record.pending;
  if (policy.skip == fleet::SkipMode::kAllowed) {
    pending = {stored.back()};
  } else {
    pending.insert(pending.end(), stored.begin(), stored.end());
    MakeRoom(core, id, pool, std::ssize(stored));
  }
  pool.record.considered = stored.back();
}

// Stored versions of `run` in order of their numbers, above `after` where one is given.
std::vector<VersionKey> StoredSince(const Core& core, const AdapterName& adapter, RunId run,
                                    const std::optional<VersionKey>& after) {
  const VersionKey first{adapter, run, VersionNumber(0)};
  auto it = after.has_value() && *after >= first ? core.versions.upper_bound(*after)
                                                 : core.versions.lower_bound(first);
  std::vector<VersionKey> keys;
  for (; it != core.versions.end() && it->first.adapter == adapter && it->first.run == run; ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

void AdvancePool(Core& core, const AdapterInfo& info, const fleet::PoolSource& source,
                 const PoolId& id) {
  Pool& pool = core.PoolOf(id);
  const size_t gone = std::erase_if(pool.record.pending, [&](const VersionKey& key) {
    return key.run != info.current_run || !core.versions.contains(key);
  });
  std::optional<VersionKey>& considered = pool.record.considered;
  bool is_ahead = false;
  std::vector<VersionKey> stored;
  if (source.kind == fleet::PoolSource::Kind::kPublished) {
    // A pin may have brought the pool further while it took its versions from elsewhere. What it
    // serves of a store that was lost says nothing of those of the store in its place.
    is_ahead = pool.committed() != nullptr && considered < pool.committed()->version.key &&
               core.versions.contains(pool.committed()->version.key);
    if (is_ahead) considered = pool.committed()->version.key;
    stored = StoredSince(core, id.adapter, info.current_run, considered);
    // Of what was there before this pool was first looked at, only the newest was ever meant for
    // it.
    if (!considered.has_value() && stored.size() > 1) {
      stored.erase(stored.begin(), stored.end() - 1);
    }
    if (!stored.empty()) Queue(core, info.policy, id, pool, stored);
  }
  if (gone > 0 || is_ahead || !stored.empty()) core.SavePool(id, pool);
}

}  // namespace

void HandleListed(Core& core, const StoreListed& event) {
  core.adapters.clear();
  core.versions.clear();
  core.aliases.clear();
  for (const AdapterInfo& info : event.adapters) core.adapters[info.adapter] = info;
  for (const VersionInfo& version : event.versions) core.versions[version.key] = version;
  for (const AliasInfo& alias : event.aliases)
    core.aliases[{alias.adapter, alias.alias}] = alias.target;
  core.remembered = event.remembered;
  // They were deleted while this process did not run, or was cut off from the store.
  core.gone.clear();  // what a store had lost may be there again
  for (const auto& [id, pool] : core.pools) {
    if (!core.adapters.contains(id.adapter)) core.gone.insert(id.adapter);
  }
  for (const auto& [key, verdict] : core.verdicts) {
    if (!core.versions.contains(key)) core.deleted.insert(key);
  }
  for (const auto& [key, name] : core.names) {
    if (!core.versions.contains(key.first)) core.deleted.insert(key.first);
  }
  core.changed.All();
  core.store_known = true;
}

void HandleAdapterSet(Core& core, const AdapterSet& event) {
  core.adapters[event.info.adapter] = event.info;
  core.changed.Adapter(event.info.adapter);
}

void HandleAdapterDeleted(Core& core, const AdapterDeleted& event) {
  core.adapters.erase(event.adapter);
  core.gone.insert(event.adapter);
  core.changed.Adapter(event.adapter);
}

void HandleStored(Core& core, const VersionStored& event) {
  core.versions[event.version.key] = event.version;
  core.changed.Adapter(event.version.key.adapter);
}

void HandleDeleted(Core& core, const VersionDeleted& event) {
  core.versions.erase(event.version);
  core.deleted.insert(event.version);
  core.changed.Adapter(event.version.adapter);
}

void HandleAliasSet(Core& core, const AliasSet& event) {
  core.changed.Adapter(event.adapter);
  if (event.target.has_value()) {
    core.aliases[{event.adapter, event.alias}] = *event.target;
  } else {
    core.aliases.erase({event.adapter, event.alias});
  }
}

void HandleHoldsAcked(Core& core, const HoldsAcked& event) {
  const auto sent = core.holds_sent.find(event.revision);
  if (sent == core.holds_sent.end()) return;
  core.holds_acked = core.holds_record.acked = event.revision;
  core.remembered = HoldsMark{core.meta.term.incarnation, event.revision};
  core.SaveQuietly(HoldsKey(), core.holds_record);
  // The store may receive any set that was sent since this one, and delete what that set leaves
  // out.
  for (const VersionKey& key : sent->second) {
    const bool stays = std::all_of(sent, core.holds_sent.end(),
                                   [&](const auto& later) { return later.second.contains(key); });
    if (stays && core.held.insert(key).second) core.changed.Held(key.adapter);
  }
  core.holds_sent.erase(core.holds_sent.begin(), std::next(sent));
  for (const VersionKey& key : event.missing) {
    core.held.erase(key);
    core.versions.erase(key);
    core.deleted.insert(key);
    core.changed.Adapter(key.adapter);
  }
}

void AdvanceCatalogue(Core& core) {
  if (core.footing != Footing::kSettled) return;
  const Changes::Adapters changed = std::exchange(core.changed.queues, {.all = false});
  const auto advance = [&](const AdapterInfo& info) {
    for (const auto& [pool, source] : info.policy.pools)
      AdvancePool(core, info, source, {info.adapter, pool});
  };
  if (changed.all) {
    for (const auto& [adapter, info] : core.adapters) advance(info);
    return;
  }
  for (const AdapterName& adapter : changed.some) {
    if (const AdapterInfo* info = core.FindAdapter(adapter)) advance(*info);
  }
}

const VersionInfo* NewestOf(const Core& core, const AdapterName& adapter) {
  const AdapterInfo* info = core.FindAdapter(adapter);
  if (info == nullptr) return nullptr;
  const VersionKey last{adapter, info->current_run,
                        VersionNumber(std::numeric_limits<uint64_t>::max())};
  auto it = core.versions.upper_bound(last);
  if (it == core.versions.begin()) return nullptr;
  --it;
  return it->first.adapter == adapter && it->first.run == info->current_run ? &it->second : nullptr;
}

absl::Status NoPool(const Core& core, const PoolId& id) {
  const AdapterInfo* info = core.FindAdapter(id.adapter);
  if (info == nullptr) {
    std::vector<std::string> adapters;
    for (const auto& [name, known] : core.adapters) adapters.push_back(name.value);
    return Error(absl::StatusCode::kNotFound, "UNKNOWN_ADAPTER",
                 absl::StrCat("there is no adapter ", id.adapter.value,
                              DidYouMean(id.adapter.value, adapters)));
  }
  return fleet::UnknownPool(id.adapter, info->policy, id.pool);
}

}  // namespace lorry::sync
