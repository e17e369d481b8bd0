#include "tests/sim/sources.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sim {
namespace {

using Kind = fleet::PoolSource::Kind;

bool Has(const sync::PoolRecord& pool, const VersionKey& version) {
  return std::ranges::any_of(pool.history, [&](const sync::Activation& activation) {
    return activation.version.key == version;
  });
}

template <typename Map>
void KeepTheLast(Map& map) {
  for (auto& [key, values] : map) values.erase(values.begin(), values.end() - 1);
}

}  // namespace

void Sources::Know(const sync::AdapterInfo& info) {
  adapters_[info.adapter].emplace_back(info);
  for (const auto& [pool, source] : info.policy.pools) {
    if (source.kind != Kind::kPublished) begun_.may_go_back.insert({info.adapter, pool});
  }
}

void Sources::Heard(const sync::Event& event) {
  if (const auto* listed = std::get_if<sync::StoreListed>(&event)) {
    for (auto& [adapter, infos] : adapters_) infos.emplace_back();
    for (auto& [alias, targets] : aliases_) targets.emplace_back();
    for (const sync::AdapterInfo& info : listed->adapters) Know(info);
    for (const sync::AliasInfo& alias : listed->aliases)
      aliases_[{alias.adapter, alias.alias}].emplace_back(alias.target);
  }
  if (const auto* set = std::get_if<sync::AdapterSet>(&event)) Know(set->info);
  if (const auto* deleted = std::get_if<sync::AdapterDeleted>(&event))
    adapters_[deleted->adapter].emplace_back();
  if (const auto* set = std::get_if<sync::AliasSet>(&event))
    aliases_[{set->adapter, set->alias}].push_back(set->target);
  if (const auto* pin = std::get_if<sync::OverrideSet>(&event); pin && pin->version.has_value()) {
    pinned_.insert({{pin->adapter, pin->pool}, *pin->version});
    begun_.may_go_back.insert({pin->adapter, pin->pool});
  }
  if (const auto* watch = std::get_if<sync::WatchOpened>(&event))
    watches_[watch->watch] = {{watch->version.adapter, watch->pool}, watch->version};
}

void Sources::TurnIsOver() {
  KeepTheLast(adapters_);
  KeepTheLast(aliases_);
  pinned_.clear();
}

std::vector<const sync::PoolRecord*> Sources::Change::Pools(const Pool& pool) const {
  const std::string key = sync::PoolKey(pool.first, pool.second).text;
  std::vector<const sync::PoolRecord*> pools;
  if (const auto before = records.find(key); before != records.end())
    pools.push_back(&std::get<sync::PoolRecord>(before->second));
  if (const auto after = changes.find(key); after != changes.end() && after->second->value)
    pools.push_back(&std::get<sync::PoolRecord>(*after->second->value));
  return pools;
}

std::set<fleet::PoolSource> Sources::SourcesOf(const Pool& pool) const {
  std::set<fleet::PoolSource> sources;
  const auto infos = adapters_.find(pool.first);
  if (infos == adapters_.end()) return sources;
  for (const auto& info : infos->second) {
    if (!info.has_value()) continue;
    const auto source = info->policy.pools.find(pool.second);
    if (source != info->policy.pools.end()) sources.insert(source->second);
  }
  return sources;
}

// Whether its run was the adapter's, at any moment of the turn.
bool Sources::IsCurrent(const VersionKey& version) const {
  const auto infos = adapters_.find(version.adapter);
  return infos != adapters_.end() && std::ranges::any_of(infos->second, [&](const auto& info) {
           return info.has_value() && info->current_run == version.run;
         });
}

bool Sources::IsPinned(const Change& change, const Pool& pool, const VersionKey& version) const {
  return pinned_.contains({pool, version}) ||
         std::ranges::any_of(change.Pools(pool), [&](const sync::PoolRecord* record) {
           return record->override_to == version;
         });
}

bool Sources::Names(const Change& change, const Pool& pool, const fleet::PoolSource& source,
                    const VersionKey& version) const {
  if (source.kind == Kind::kPublished) return IsCurrent(version);
  if (source.kind == Kind::kPool) {
    return std::ranges::any_of(
        change.Pools({pool.first, source.pool}),
        [&](const sync::PoolRecord* followed) { return Has(*followed, version); });
  }
  const auto targets = aliases_.find({pool.first, source.alias});
  return targets != aliases_.end() && std::ranges::count(targets->second, version) > 0;
}

void Sources::Writes(const sync::Records& records, const std::vector<sync::Record>& changes) {
  const auto matters = [](const sync::Record& record) {
    return record.value.has_value() &&
           (std::holds_alternative<sync::DecisionRecord>(*record.value) ||
            std::holds_alternative<sync::SyncRecord>(*record.value));
  };
  if (std::ranges::none_of(changes, matters)) return;
  Change change{records, {}};
  for (const sync::Record& record : changes) change.changes[record.key] = &record;
  for (const sync::Record& record : changes) {  // decisions come before the syncs that follow them
    if (!record.value.has_value()) continue;
    const auto* decision = std::get_if<sync::DecisionRecord>(&*record.value);
    if (decision != nullptr && decision->commit) Commits(change, record.key, *decision);
    if (const auto* sync = std::get_if<sync::SyncRecord>(&*record.value))
      Begins(change, record.key, *sync);
  }
}

void Sources::Begins(const Change& change, const std::string& key, const sync::SyncRecord& sync) {
  const VersionKey& version = sync.version.key;
  Begun::Sync& begun = begun_.syncs[key];
  // One with the same number and version that is not written yet is of another incarnation.
  const bool goes_on = change.records.contains(key);
  if (goes_on && begun.epoch == sync.epoch && begun.version == version) return;
  const Pool pool{AdapterName(sync::MiddlePart(key)), PoolName(sync::LastPart(key))};
  begun = {sync.epoch, version, SourcesOf(pool)};
  if (sync.overriding || IsPinned(change, pool, version)) return;
  std::erase_if(begun.sources,
                [&](const auto& source) { return !Names(change, pool, source, version); });
  if (begun.sources.empty())
    oracle_.Violate(20, absl::StrCat(ToString(version), " is synced in ", pool.second.value,
                                     ", and nothing names it there"));
}

void Sources::Commits(const Change& change, const std::string& key,
                      const sync::DecisionRecord& decision) {
  const VersionKey& version = decision.version;
  const Pool pool{AdapterName(sync::MiddlePart(key)), PoolName(sync::LastPart(key))};
  const std::string sync_key = sync::SyncKey(pool.first, pool.second).text;
  const auto record = change.records.find(sync_key);
  const auto* sync =
      record != change.records.end() ? &std::get<sync::SyncRecord>(record->second) : nullptr;
  const bool began_before = sync != nullptr && sync->epoch == decision.epoch;
  if ((began_before && sync->overriding) || IsPinned(change, pool, version)) return;
  std::set<fleet::PoolSource> sources = SourcesOf(pool);
  const Begun::Sync& begun = begun_.syncs[sync_key];
  const bool is_known = begun.epoch == decision.epoch && begun.version == version;
  std::erase_if(sources, [&](const fleet::PoolSource& source) {
    // What an alias named when the sync began is decided before what it names by now.
    if (began_before && source.kind == Kind::kAlias) return !begun.sources.contains(source);
    const bool was_so = !began_before || !is_known || begun.sources.contains(source);
    return !was_so || !Names(change, pool, source, version);
  });
  if (sources.empty()) {
    oracle_.Violate(20, absl::StrCat(ToString(version), " is decided in ", pool.second.value,
                                     ", which takes its versions from elsewhere"));
  } else if (sources.size() == 1 && sources.begin()->kind == Kind::kPool) {
    CheckLineage(change, pool, sources.begin()->pool);
  }
}

// What was rolled back where the pool takes its versions from is behind none of them here.
void Sources::CheckLineage(const Change& change, const Pool& pool, const PoolName& followed) const {
  const sync::PoolRecord* after = change.Pools(pool).back();
  if (after->history.size() < 2) return;
  const VersionKey& before = (after->history.end() - 2)->version.key;
  const auto known = change.Pools({pool.first, followed});
  const bool has_it = std::ranges::any_of(
      known, [&](const sync::PoolRecord* record) { return Has(*record, before); });
  if (!known.empty() && !has_it)
    oracle_.Violate(20, absl::StrCat(pool.second.value, " goes on from ", ToString(before),
                                     ", which ", followed.value, " was rolled back from"));
}

// Nothing older succeeds a version: what a newer run fences is said to be fenced.
void Sources::Tells(const sync::NotifyWatch& told) const {
  const auto watch = watches_.find(told.watch);
  if (watch == watches_.end() || told.event.state != sync::WatchEvent::State::kSuperseded) return;
  const auto& [pool, version] = watch->second;
  const VersionKey& by = told.event.superseded_by;
  const std::set<fleet::PoolSource> sources = SourcesOf(pool);
  if (sources.size() != 1 || by > version) return;
  const fleet::PoolSource& source = *sources.begin();
  const Pool from = source.kind == Kind::kPool ? Pool{pool.first, source.pool} : pool;
  if (!begun_.may_go_back.contains(from))
    oracle_.Violate(14, absl::StrCat("the watch of ", ToString(version), " in ", pool.second.value,
                                     " ends by ", ToString(by), ", which is older"));
}

}  // namespace lorry::sim
