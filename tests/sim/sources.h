// What a leader may decide, by the policies, runs, aliases and pins that it has heard of. Its turn may
// decide by what it knew when the turn began, or by anything that it heard in it.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/sync_orchestrator/machine/effects.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

// What one leader leaves to the next, beside the records.
struct Begun {
  // Where a running sync may have its version from, as the leader knew that began it.
  struct Sync {
    Epoch epoch;
    VersionKey version;
    std::set<fleet::PoolSource> sources;
  };
  std::map<std::string, Sync> syncs;  // by record key
  // Pools that were pinned, or took their versions from elsewhere than what is published: what they
  // decide may be older than what they have passed by.
  std::set<std::pair<AdapterName, PoolName>> may_go_back;
};

class Sources {
 public:
  Sources(Oracle& oracle, Begun& begun) : oracle_(oracle), begun_(begun) {}

  void Heard(const sync::Event& event);
  // 20: of a transaction that is about to be written over `records`.
  void Writes(const sync::Records& records, const std::vector<sync::Record>& changes);
  // 14: of the last answer to a watch.
  void Tells(const sync::NotifyWatch& told) const;
  void TurnIsOver();

 private:
  using Pool = std::pair<AdapterName, PoolName>;
  struct Change {
    const sync::Records& records;
    std::map<std::string, const sync::Record*> changes;
    // As it was, and as it will be; null where there is none.
    std::vector<const sync::PoolRecord*> Pools(const Pool& pool) const;
  };

  void Know(const sync::AdapterInfo& info);
  std::set<fleet::PoolSource> SourcesOf(const Pool& pool) const;
  bool IsCurrent(const VersionKey& version) const;
  bool IsPinned(const Change& change, const Pool& pool, const VersionKey& version) const;
  bool Names(const Change& change, const Pool& pool, const fleet::PoolSource& source,
             const VersionKey& version) const;
  void Begins(const Change& change, const std::string& key, const sync::SyncRecord& sync);
  void Commits(const Change& change, const std::string& key, const sync::DecisionRecord& decision);
  void CheckLineage(const Change& change, const Pool& pool, const PoolName& followed) const;

  Oracle& oracle_;
  Begun& begun_;
  // The last of each is what is known now; none: it is gone.
  std::map<AdapterName, std::vector<std::optional<sync::AdapterInfo>>> adapters_;
  std::map<std::pair<AdapterName, AliasName>, std::vector<std::optional<VersionKey>>> aliases_;
  std::set<std::pair<Pool, VersionKey>> pinned_;  // by calls of this turn
  std::map<sync::WatchId, std::pair<Pool, VersionKey>> watches_;
};

}  // namespace lorry::sim
