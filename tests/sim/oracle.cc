#include "tests/sim/oracle.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/sim/draw.h"

namespace lorry::sim {

void Oracle::Violate(int invariant, const std::string& what) {
  if (!violation_.has_value()) {
    violation_ = absl::StrCat("invariant ", invariant, " at ", now_(), " ms: ", what);
  }
}

void Oracle::NameMeans(const EngineName& name, const Digest& content) {
  const auto [it, is_new] = contents_.emplace(name, content);
  if (!is_new && it->second != content) Violate(1, absl::StrCat(name.value, " means two contents"));
}

void Oracle::Durable(const Term& term, const sync::Record& record) {
  if (!record.value.has_value()) {
    if (record.key.starts_with("member/") && on_forgotten_)
      on_forgotten_(MemberId(sync::LastPart(record.key)));
    const std::pair of{AdapterName(sync::MiddlePart(record.key)),
                       PoolName(sync::LastPart(record.key))};
    // Its leader has heard that the adapter was gone for a while, and may have decided once more
    // before it did.
    if (record.key.starts_with("decision/") && were_gone_.contains(of.first)) committed_.erase(of);
    if (record.key.starts_with("sync/")) {  // decided, or gone with its adapter
      std::erase_if(staged_, [&](const EpochKey& id) {
        return std::get<1>(id) == of.first && std::get<2>(id) == of.second;
      });
    }
    return;
  }
  if (const auto* meta = std::get_if<sync::MetaRecord>(&*record.value)) return Reigns(*meta);
  const auto id = [&](Epoch epoch) {
    return EpochKey{term.incarnation, AdapterName(sync::MiddlePart(record.key)),
                    PoolName(sync::LastPart(record.key)), epoch};
  };
  if (const auto* verdict = std::get_if<sync::VerdictRecord>(&*record.value)) {
    if (on_verdict_) on_verdict_(*verdict);
  }
  if (const auto* member = std::get_if<sync::MemberRecord>(&*record.value)) {
    if (member->dead && on_dead_) on_dead_(MemberId(sync::LastPart(record.key)));
  }
  if (const auto* sync = std::get_if<sync::SyncRecord>(&*record.value)) {
    if (sync->mode == fleet::SyncMode::kBarrier) barriers_.insert(id(sync->epoch));
    const auto [it, is_new] = started_.emplace(id(sync->epoch), sync->version.key);
    if (is_new) members_[id(sync->epoch)] = sync->share_of;  // lost records may give it anew
    staged_.insert(id(sync->epoch));
    if (!is_new && it->second != sync->version.key) {
      Violate(3, absl::StrCat("epoch ", sync->epoch.value, " syncs ", ToString(it->second), " and ",
                              ToString(sync->version.key)));
    }
  }
  if (const auto* pool = std::get_if<sync::PoolRecord>(&*record.value)) {
    if (!pool->history.empty())
      Remembered(id(pool->history.back().epoch), pool->history.back().version.key);
    // One that was superseded in the very transaction that decided it has no decision of its own.
    // One that was adopted was decided under the same epoch.
    for (const sync::Activation& activation : pool->history) {
      if (started_.contains(id(activation.epoch)) ||
          WasDecidedBefore(id(activation.epoch), activation.version.key))
        decided_.emplace(id(activation.epoch),
                         sync::DecisionRecord{activation.epoch, activation.version.key, true});
    }
  }
  if (const auto* decision = std::get_if<sync::DecisionRecord>(&*record.value)) {
    if (can::kNeverSettleAlone && is_lost_)
      Violate(18, "records are lost, the store knows it, and a version is decided");
    const auto [it, is_new] = decided_.emplace(id(decision->epoch), *decision);
    if (is_new) ++(decision->commit ? commits_ : aborts_);
    const auto& [incarnation, adapter, pool, epoch] = it->first;
    if (decision->commit) committed_[{adapter, pool}] = decision->version;
    if (decision->commit && barriers_.contains(it->first))
      behind_[{incarnation, adapter, pool}] = epoch;
    if (decision->commit && is_new && on_commit_)
      on_commit_(adapter, pool, decision->version, members_[it->first]);
    if (!is_new && it->second != *decision) {
      Violate(4, absl::StrCat("epoch ", decision->epoch.value,
                              " was decided twice: ", it->second.commit ? "COMMIT" : "ABORT",
                              " and ", decision->commit ? "COMMIT" : "ABORT"));
    }
  }
}

// A reign over lost records forgets what was decided, unless it adopts it (by its pool records,
// which are written with this one).
void Oracle::Reigns(const sync::MetaRecord& meta) {
  if (meta.worth != sync::Worth::kSettled) {
    unsettled_.insert(meta.term);
    is_unsettled_ = true;
    return;
  }
  incarnation_ = meta.term.incarnation;
  unsettled_.erase(meta.term);
  if (!std::exchange(is_unsettled_, false)) return;
  lives_.clear();
  if (!can::kAdoptTheLast) return committed_.clear();
  // Of what was committed before, a row somewhere still remembers the last, or nobody does.
  std::erase_if(committed_, [&](const auto& commit) {
    return std::none_of(stands_.begin(), stands_.end(), [&](const auto& row) {
      return row.first.second == commit.first.first && row.second.first == commit.first.second &&
             row.second.second == commit.second;
    });
  });
}

void Oracle::PolicyHas(const AdapterName& adapter,
                       const std::map<PoolName, fleet::PoolSource>& pools) {
  auto& its = pools_[adapter];
  its.clear();
  for (const auto& [pool, source] : pools) its.insert(pool);
  std::erase_if(committed_, [&](const auto& commit) {
    return commit.first.first == adapter && !its.contains(commit.first.second);
  });
}

// What a pool remembers that no policy has is not kept for it.
bool Oracle::HasPool(const AdapterName& adapter, const PoolName& pool) const {
  const auto its = pools_.find(adapter);
  return its == pools_.end() || its->second.contains(pool);
}

void Oracle::BeginsWith(const sync::Records& records) {
  const Term term = std::get<sync::MetaRecord>(records.at("meta")).term;
  for (const auto& [key, value] : records) {
    const auto* pool = std::get_if<sync::PoolRecord>(&value);
    if (pool == nullptr) continue;
    for (const auto& [epoch, version] : pool->history) {
      const EpochKey id{term.incarnation, AdapterName(sync::MiddlePart(key)),
                        PoolName(sync::LastPart(key)), epoch};
      decided_[id] = sync::DecisionRecord{epoch, version.key, true};
    }
  }
}

void Oracle::RecordsLost(bool is_remembered, const sync::Records& left) {
  leases_.clear();
  staged_.clear();
  is_lost_ = is_remembered;
  if (!is_remembered) TakenForTheLatest(left);
}

// The epochs, and incarnations, that were given out since are given out again, and what they were
// syncing is decided anew. What doors were told before stands there until a leader hears of it.
void Oracle::TakenForTheLatest(const sync::Records& left) {
  const auto meta = left.find("meta");
  const uint64_t latest =
      meta != left.end() ? std::get<sync::MetaRecord>(meta->second).term.incarnation : incarnation_;
  std::map<std::pair<AdapterName, PoolName>, Epoch> begun;
  for (const auto& [key, value] : left) {
    const std::pair of{AdapterName(sync::MiddlePart(key)), PoolName(sync::LastPart(key))};
    if (const auto* pool = std::get_if<sync::PoolRecord>(&value)) begun[of] = pool->epoch;
    if (const auto* sync = std::get_if<sync::SyncRecord>(&value))
      Undecide({latest, of.first, of.second, sync->epoch});
  }
  const auto is_unknown = [&](const auto& entry) {
    const auto& [incarnation, adapter, pool, epoch] = entry.first;
    const auto known = begun.find({adapter, pool});
    // A pool that these records do not know began after them.
    const Epoch last = known != begun.end() ? known->second : left.empty() ? epoch : Epoch();
    return incarnation > latest || (incarnation == latest && epoch > last);
  };
  std::erase_if(started_, is_unknown);
  std::erase_if(behind_, [&](const auto& entry) {
    const auto& [incarnation, adapter, pool] = entry.first;
    return is_unknown(std::pair(EpochKey{incarnation, adapter, pool, entry.second}, 0));
  });
  std::vector<EpochKey> unknown;
  for (const auto& entry : decided_) {
    if (is_unknown(entry)) unknown.push_back(entry.first);
  }
  for (const EpochKey& id : unknown) Undecide(id);
}

void Oracle::Undecide(const EpochKey& id) {
  const auto its = decided_.find(id);
  if (its == decided_.end()) return;
  if (its->second.commit) {
    once_committed_[id].insert(its->second.version);
    const auto& [incarnation, adapter, pool, epoch] = id;
    const auto last = committed_.find({adapter, pool});
    if (last != committed_.end() && last->second == its->second.version) committed_.erase(last);
  }
  decided_.erase(its);
}

void Oracle::Adopted(const Remembrance& remembered,
                     const std::function<bool(const VersionKey&)>& is_stored) {
  is_lost_ = false;
  const auto is_known = [&](const auto& commit) {
    const auto door = remembered.find(commit.first);
    if (door == remembered.end()) return false;
    const auto& [adapter, pool] = commit.first;
    const auto& [incarnation, epoch] = door->second;
    const auto decided = decided_.find(EpochKey{incarnation, adapter, pool, epoch});
    return decided == decided_.end() || decided->second.version == commit.second;
  };
  std::erase_if(committed_,
                [&](const auto& commit) { return !is_known(commit) || !is_stored(commit.second); });
}

void Oracle::StoreForgot(bool still_knows, const std::set<VersionKey>& held,
                         const sync::Records& records) {
  if (std::exchange(is_lost_, is_lost_ && still_knows) && !still_knows) TakenForTheLatest(records);
  lives_.clear();
  std::erase_if(leases_, [&](const auto& lease) { return !held.contains(lease.first.first); });
  held_by_older_ = held;
}

void Oracle::JournalLost(const JournalId& journal) {
  std::erase_if(stands_, [&](const auto& row) { return row.first.first == journal; });
}

void Oracle::AdapterDeleted(const AdapterName& adapter, std::optional<RunId> next_begins) {
  were_gone_.insert(adapter);
  if (next_begins.has_value()) lives_[adapter].insert(*next_begins);
  std::erase_if(staged_, [&](const EpochKey& id) { return std::get<1>(id) == adapter; });
  std::erase_if(committed_, [&](const auto& commit) { return commit.first.first == adapter; });
  std::erase_if(leases_, [&](const auto& lease) { return lease.first.first.adapter == adapter; });
}

bool Oracle::WasDecidedBefore(const EpochKey& id, const VersionKey& version) const {
  const auto& [incarnation, adapter, pool, epoch] = id;
  return std::ranges::any_of(decided_, [&](const auto& entry) {
    const auto& [its_incarnation, its_adapter, its_pool, its_epoch] = entry.first;
    return its_incarnation < incarnation && its_adapter == adapter && its_pool == pool &&
           its_epoch == epoch && entry.second.commit && entry.second.version == version;
  });
}

// What a pool serves was committed; in a later incarnation, what was adopted of an earlier one.
// (An older one of its history may have been superseded in the very transaction that decided it.)
void Oracle::Remembered(const EpochKey& id, const VersionKey& version) {
  if (decided_.contains(id)) return;
  const auto& [incarnation, adapter, pool, epoch] = id;
  if (IsOver(id)) {
    decided_[id] = sync::DecisionRecord{epoch, version, true};
    if (HasPool(adapter, pool)) committed_[{adapter, pool}] = version;
    return;
  }
  const auto last = committed_.find({adapter, pool});
  if (can::kAdoptTheLast && last != committed_.end() && last->second != version) {
    Violate(4, absl::StrCat(ToString(version), " was adopted, and ", ToString(last->second),
                            " was committed last"));
  }
  const auto is_of_pool = [&](const EpochKey& earlier) {
    return std::get<1>(earlier) == adapter && std::get<2>(earlier) == pool;
  };
  const bool is_decided = std::ranges::any_of(decided_, [&](const auto& earlier) {
    return is_of_pool(earlier.first) && earlier.second.commit && earlier.second.version == version;
  });
  const bool was_decided = std::ranges::any_of(once_committed_, [&](const auto& earlier) {
    return is_of_pool(earlier.first) && earlier.second.contains(version);
  });
  if (is_decided || was_decided) {
    if (HasPool(adapter, pool)) committed_[{adapter, pool}] = version;
    decided_[id] = sync::DecisionRecord{epoch, version, true};
    return;
  }
  Violate(4,
          absl::StrCat("epoch ", epoch.value, " of ", ToString(version), " was never committed"));
}

void Oracle::DesiredSent(const Term& term) {
  if (can::kNeverSettleAlone && is_lost_)
    Violate(18, "records are lost, the store knows it, and members are told what to serve");
  if (unsettled_.contains(term)) Violate(4, "something is desired before the fleet was adopted");
}

void Oracle::BeganOnLatest(uint64_t incarnation, const AdapterName& adapter, const PoolName& pool,
                           Epoch epoch) {
  const auto behind = behind_.find({incarnation, adapter, pool});
  if (behind == behind_.end() || epoch >= behind->second) return;
  Violate(5, absl::StrCat("a request of ", adapter.value, " begins on epoch ", epoch.value,
                          " behind the barrier of epoch ", behind->second.value));
}

// Of an earlier adapter of the name, which was deleted since.
bool Oracle::IsOfAnother(const VersionKey& version, const VersionKey& decided) const {
  const auto lives = lives_.find(version.adapter);
  return lives != lives_.end() &&
         lives->second.upper_bound(version.run) != lives->second.upper_bound(decided.run);
}

std::map<Epoch, std::set<VersionKey>> Oracle::CommitsOf(uint64_t incarnation,
                                                        const AdapterName& adapter,
                                                        const PoolName& pool) const {
  std::map<Epoch, std::set<VersionKey>> commits;
  const auto is_of_pool = [&](const EpochKey& id) {
    return std::get<0>(id) == incarnation && std::get<1>(id) == adapter && std::get<2>(id) == pool;
  };
  const EpochKey from{incarnation, adapter, pool, Epoch()};
  for (auto it = decided_.lower_bound(from); it != decided_.end() && is_of_pool(it->first); ++it) {
    if (it->second.commit) commits[std::get<3>(it->first)].insert(it->second.version);
  }
  for (auto it = once_committed_.lower_bound(from);
       it != once_committed_.end() && is_of_pool(it->first); ++it) {
    commits[std::get<3>(it->first)].insert(it->second.begin(), it->second.end());
  }
  return commits;
}

void Oracle::ServedLatest(uint64_t incarnation, const PoolName& pool, Epoch known,
                          const VersionKey& version, uint32_t max_staleness) {
  const auto last = decided_.find(EpochKey{incarnation, version.adapter, pool, known});
  if (last != decided_.end() && IsOfAnother(version, last->second.version)) {
    Violate(15, absl::StrCat("a request of latest is answered by ", ToString(version), ", where ",
                             ToString(last->second.version), " of another adapter is decided"));
  }
  std::set<VersionKey> since;  // decided on after it; one that came back counts once
  for (const auto& [epoch, versions] : CommitsOf(incarnation, version.adapter, pool)) {
    if (versions.contains(version)) {
      since.clear();
      if (epoch > known) return;  // it has heard of more since
    } else if (epoch <= known) {
      since.insert(*versions.begin());
    }
  }
  if (since.size() > max_staleness) {
    Violate(15,
            absl::StrCat("a request of latest is answered by ", ToString(version), ", ",
                         since.size(), " versions behind, where ", max_staleness, " are allowed"));
  }
}

void Oracle::Deleted(const VersionKey& version) {
  if (held_by_older_.has_value() && !held_by_older_->contains(version)) return;
  for (const auto& [promise, until] : leases_) {
    if (promise.first == version && until > now_())
      Violate(10,
              absl::StrCat(ToString(version), " was deleted, which ", promise.second, " leases"));
  }
  for (const EpochKey& id : staged_) {
    const bool reigns = std::get<0>(id) == incarnation_;
    if (reigns && started_.at(id) == version && !IsOver(id))
      Violate(10, absl::StrCat(ToString(version), " was deleted, which a sync stages"));
  }
  for (const auto& [pool, committed] : committed_) {
    if (committed == version)
      Violate(
          8, absl::StrCat(ToString(version), " was deleted, which ", pool.second.value, " serves"));
  }
}

// A decision that a later one of the same transaction overtook is written nowhere.
bool Oracle::IsOver(const EpochKey& id) const {
  const auto& [incarnation, adapter, pool, epoch] = id;
  const auto next = decided_.lower_bound(id);
  return next != decided_.end() && std::get<0>(next->first) == incarnation &&
         std::get<1>(next->first) == adapter && std::get<2>(next->first) == pool;
}

void Oracle::RowOpened(const JournalId& journal, uint64_t incarnation, const AdapterName& adapter,
                       const PoolName& pool, Epoch epoch, const VersionKey& version) {
  const auto decided = decided_.find(EpochKey{incarnation, adapter, pool, epoch});
  const bool is_decided =
      decided != decided_.end() && decided->second.commit && decided->second.version == version;
  const auto once = once_committed_.find(EpochKey{incarnation, adapter, pool, epoch});
  const bool was_decided = once != once_committed_.end() && once->second.contains(version);
  if (!is_decided && !was_decided) {
    Violate(4, absl::StrCat("a row of ", adapter.value, " opened ", ToString(version), " at epoch ",
                            epoch.value, ", which was not committed"));
  }
  stands_[{journal, adapter}] = {pool, version};
  Epoch& last = opened_[{journal, incarnation, adapter, pool}];
  if (epoch < last) {
    Violate(3, absl::StrCat("a row's epoch fell from ", last.value, " to ", epoch.value));
  }
  last = epoch;
}

void Oracle::Leased(const VersionKey& version, const std::string& holder, Tick until) {
  if (until > now_()) {
    leases_[{version, holder}] = until;
  } else {
    leases_.erase({version, holder});
  }
}

bool MayName(const fleet::Selector& selector, const VersionKey& version) {
  using Kind = fleet::Selector::Kind;
  if (selector.adapter != version.adapter) return false;
  if (selector.kind == Kind::kNumber) return selector.number == version.number;
  if (selector.kind == Kind::kVersion)
    return selector.run == version.run && selector.number == version.number;
  return true;
}

void Oracle::LeaseInDoubt(const fleet::Selector& selector, const std::string& holder, Tick until) {
  for (auto& [promise, promised] : leases_) {
    if (promise.second == holder && MayName(selector, promise.first))
      promised = std::min(promised, until);
  }
}

bool Oracle::IsAnothers(const AdapterName& adapter, const PoolName& pool, Epoch epoch,
                        const VersionKey& version) const {
  bool is_its = false, is_anothers = false;
  const auto note = [&](const EpochKey& id, const VersionKey& its) {
    const auto& [incarnation, its_adapter, its_pool, its_epoch] = id;
    if (its_adapter != adapter || its_pool != pool || its_epoch != epoch) return;
    (its == version ? is_its : is_anothers) = true;
  };
  for (const auto& [id, its] : started_) note(id, its);
  for (const auto& [id, decision] : decided_) note(id, decision.version);
  for (const auto& [id, versions] : once_committed_) {
    for (const VersionKey& its : versions) note(id, its);
  }
  return is_anothers && !is_its;
}

void Oracle::KnowsLeases(const std::vector<sync::LeaseStatus>& leases) {
  std::erase_if(leases_, [&](const auto& lease) { return lease.second <= now_(); });
  for (const auto& [promise, until] : leases_) {
    const bool known = std::any_of(leases.begin(), leases.end(), [&](const auto& lease) {
      return lease.record.version.key == promise.first && lease.record.holder == promise.second;
    });
    if (!known)
      Violate(10, absl::StrCat("the lease of ", ToString(promise.first), " is forgotten"));
  }
}

void Oracle::StaleDocument(const fleet::Observed& before, const fleet::Observed& after) {
  if (before.term != after.term || before.revision != after.revision || before.rows != after.rows) {
    Violate(9, "a document of a lower term changed a proxy");
  }
}

void Oracle::MustBeAnswered(sync::RequestId request) {
  if (answers_[request] == 0) Violate(14, absl::StrCat("call ", request, " was not answered"));
}

void Oracle::Answered(sync::RequestId request) {
  if (++answers_[request] > 1) Violate(14, absl::StrCat("call ", request, " was answered twice"));
}

}  // namespace lorry::sim
