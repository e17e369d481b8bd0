#include "tests/sim/sim_store.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"

namespace lorry::sim {

void SimStore::SetAdapter(const AdapterName& adapter, const fleet::AdapterPolicy& policy) {
  sync::AdapterInfo& info = adapters_[adapter];
  info.adapter = adapter;
  info.policy = policy;
  policies_[adapter].emplace_back(sim_.now(), policy);
  sim_.oracle.PolicyHas(adapter, policy.pools);
  if (!IsArchived(adapter)) Tell(sync::AdapterSet{info});
}

void SimStore::Archive(const AdapterName& adapter) {
  if (!archived_.insert(adapter).second) return;
  Narrate(sim_, "store", "archives " + adapter.value);
  sim_.oracle.AdapterDeleted(adapter, std::nullopt);
  Tell(sync::AdapterDeleted{adapter});
}

void SimStore::TakeBack(const AdapterName& adapter) {
  if (archived_.erase(adapter) == 0) return;
  Narrate(sim_, "store", "takes back " + adapter.value);
  sim_.oracle.AdapterDeleted(adapter, std::nullopt);
  Tell(sync::AdapterSet{adapters_.at(adapter)});
}

bool SimStore::Delete(const AdapterName& adapter) {
  const auto is_its = [&](const auto& entry) { return entry.first.adapter == adapter; };
  const bool is_held =
      std::ranges::any_of(held_, [&](const VersionKey& key) { return key.adapter == adapter; });
  if (!IsArchived(adapter) || is_held) return false;
  Narrate(sim_, "store", "deletes " + adapter.value);
  RunId& run = adapters_.at(adapter).current_run;
  run = RunId(run.value + 1);
  sim_.oracle.AdapterDeleted(adapter, run);
  for (auto it = aliases_.begin(); it != aliases_.end();) {
    if (it->first.first != adapter) {
      ++it;
      continue;
    }
    Tell(sync::AliasSet{adapter, it->first.second, std::nullopt});
    it = aliases_.erase(it);
  }
  for (const auto& [key, info] : versions_) {
    if (key.adapter == adapter) Tell(sync::VersionDeleted{key});
  }
  std::erase_if(versions_, is_its);
  Tell(sync::AdapterDeleted{adapter});
  return true;
}

RunId SimStore::OpenRun(const AdapterName& adapter) {
  sync::AdapterInfo& info = adapters_.at(adapter);
  info.current_run = RunId(info.current_run.value + 1);
  if (!IsArchived(adapter)) Tell(sync::AdapterSet{info});
  return info.current_run;
}

std::vector<fleet::AdapterPolicy> SimStore::PoliciesSince(const AdapterName& adapter,
                                                          Tick since) const {
  std::vector<fleet::AdapterPolicy> policies;
  const auto& all = policies_.at(adapter);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i + 1 == all.size() || all[i + 1].first >= since) policies.push_back(all[i].second);
  }
  return policies;
}

std::optional<VersionKey> SimStore::Newest(const AdapterName& adapter) const {
  const RunId run = adapters_.at(adapter).current_run;
  const VersionNumber last(std::numeric_limits<uint64_t>::max());
  const auto behind = versions_.upper_bound({adapter, run, last});
  if (behind == versions_.begin()) return std::nullopt;
  const VersionKey& newest = std::prev(behind)->first;
  return newest.adapter == adapter && newest.run == run ? std::optional(newest) : std::nullopt;
}

VersionKey SimStore::Publish(const AdapterName& adapter, std::optional<VersionNumber> number,
                             Harm harm) {
  const std::optional<VersionKey> newest = Newest(adapter);
  const VersionNumber next(newest.has_value() ? newest->number.value + 1 : 1);
  sync::VersionInfo info;
  info.key = VersionKey{adapter, adapters_.at(adapter).current_run, number.value_or(next)};
  info.digest = lorry::Digest{absl::StrCat("bytes-", ++contents_)};
  // A run may begin with what an earlier one began with.
  const VersionKey earlier{adapter, RunId(info.key.run.value - 1), info.key.number};
  if (versions_.contains(earlier) && sim_.Chance(sim_.faults.same_bytes)) {
    info = versions_.at(earlier);
    info.key.run = adapters_.at(adapter).current_run;
    versions_[info.key] = info;
    digests_[info.key] = info.digest;
    Tell(sync::VersionStored{info});
    return info.key;
  }
  info.traits.rank_max = sim_.Chance(sim_.faults.unservable) ? 64 : 8;
  info.traits.rslora = contents_ % 3 == 0;
  // A fresh adapter changes nothing; of every fourth the trainer did not say how much it changes, and
  // of some of these nobody can tell by a reference either.
  info.traits.all_b_zero = contents_ % 11 == 0;
  const bool is_said = contents_ % 4 != 0 && !info.traits.all_b_zero;
  info.traits.relative_norm_ppm = is_said ? 50'000 : 0;
  const bool misfit = IsOneIn(info.digest.value, sim_.faults.misfit_version);
  images_[info.digest] = SimDirectory{.digest = info.digest,
                                      .key = info.key,
                                      .harm = harm,
                                      .hidden_size = misfit ? 2u : 1u,
                                      .changes = !info.traits.all_b_zero,
                                      .must_differ = is_said,
                                      .has_reference = contents_ % 3 == 0};
  versions_[info.key] = info;
  digests_[info.key] = info.digest;
  Tell(sync::VersionStored{info});
  return info.key;
}

void SimStore::SetAlias(const AdapterName& adapter, const AliasName& alias,
                        const std::optional<VersionKey>& target) {
  if (target.has_value()) {
    aliases_[{adapter, alias}] = *target;
  } else {
    aliases_.erase({adapter, alias});
  }
  Tell(sync::AliasSet{adapter, alias, target});
}

void SimStore::CollectGarbage() {
  for (auto it = versions_.begin(); it != versions_.end();) {
    const VersionKey key = it->first;
    const bool aliased = std::any_of(aliases_.begin(), aliases_.end(),
                                     [&](const auto& a) { return a.second == key; });
    if (IsArchived(key.adapter) || held_.contains(key) || aliased || Newest(key.adapter) == key) {
      ++it;
      continue;
    }
    it = versions_.erase(it);
    sim_.oracle.Deleted(key);
    Tell(sync::VersionDeleted{key});
  }
}

bool SimStore::SetHolds(const sync::HoldsMark& mark, const std::vector<VersionKey>& versions,
                        std::vector<VersionKey>& missing) {
  if (remembered_.has_value() && mark < *remembered_) return false;
  remembered_ = mark;
  held_.clear();
  for (const VersionKey& key : versions) {
    if (Has(key)) {
      held_.insert(key);
    } else {
      missing.push_back(key);
    }
  }
  return true;
}

void SimStore::RestoreBackUp() {
  versions_ = backup_.versions;
  aliases_ = backup_.aliases;
  held_ = backup_.held;
  remembered_ = backup_.remembered;
  for (auto& [adapter, info] : adapters_) info.current_run = RunId(info.current_run.value + 1);
}

sync::StoreListed SimStore::List() const {
  sync::StoreListed listed;
  for (const auto& [adapter, info] : adapters_) {
    if (!IsArchived(adapter)) listed.adapters.push_back(info);
  }
  for (const auto& [key, info] : versions_) listed.versions.push_back(info);
  for (const auto& [name, target] : aliases_)
    listed.aliases.push_back({name.first, name.second, target});
  listed.remembered = remembered_;
  return listed;
}

}  // namespace lorry::sim
