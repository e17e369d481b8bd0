// A simulated adapter-store: adapters, versions, aliases and the orchestrator's holds; durable at
// once, watched in order.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "services/sync_orchestrator/machine/events.h"
#include "tests/sim/sim.h"
#include "tests/sim/sim_disk.h"

namespace lorry::sim {

class SimStore {
 public:
  explicit SimStore(Sim& sim) : sim_(sim) {}

  using Watcher = std::function<void(const sync::Event&)>;
  void Watch(Watcher watcher) { watcher_ = std::move(watcher); }  // told of each change, at once

  void SetAdapter(const AdapterName& adapter, const fleet::AdapterPolicy& policy);
  RunId OpenRun(const AdapterName& adapter);
  // Nobody is told of one that is archived, and nothing is published in it.
  void Archive(const AdapterName& adapter);
  void TakeBack(const AdapterName& adapter);
  bool IsArchived(const AdapterName& adapter) const { return archived_.contains(adapter); }
  // Of one that is archived, with its versions; another of its name begins. False: some are held.
  bool Delete(const AdapterName& adapter);
  // The next number of the run when none is given.
  VersionKey Publish(const AdapterName& adapter, std::optional<VersionNumber> number,
                     Harm harm = Harm::kNone);
  // Also of versions that were deleted.
  lorry::Digest Digest(const VersionKey& key) const { return digests_.at(key); }
  const SimDirectory& Contents(const VersionKey& key) const { return images_.at(digests_.at(key)); }
  const std::map<std::pair<AdapterName, AliasName>, VersionKey>& aliases() const {
    return aliases_;
  }
  void SetAlias(const AdapterName& adapter, const AliasName& alias,
                const std::optional<VersionKey>& target);
  // Deletes what no holder names, newest versions excepted.
  void CollectGarbage();

  // False for a set that is older than the one it has; `missing` are versions that it has not.
  bool SetHolds(const sync::HoldsMark& mark, const std::vector<VersionKey>& versions,
                std::vector<VersionKey>& missing);
  // A backup of what it holds; restoring it loses what was stored since. Trainers notice, and begin
  // other runs.
  void BackUp() { backup_ = {versions_, aliases_, held_, remembered_}; }
  void RestoreBackUp();
  const std::set<VersionKey>& held() const { return held_; }
  // Of the last set that it took.
  const std::optional<sync::HoldsMark>& remembered() const { return remembered_; }

  sync::StoreListed List() const;
  bool Has(const VersionKey& key) const { return versions_.contains(key); }
  const SimDirectory& Image(const lorry::Digest& digest) const { return images_.at(digest); }
  const std::map<AdapterName, sync::AdapterInfo>& adapters() const { return adapters_; }
  const std::map<VersionKey, sync::VersionInfo>& versions() const { return versions_; }
  // The policies of an adapter that anyone may act on who is so late.
  std::vector<fleet::AdapterPolicy> PoliciesSince(const AdapterName& adapter, Tick since) const;
  std::optional<VersionKey> Newest(const AdapterName& adapter) const;

 private:
  void Tell(const sync::Event& event) {
    if (watcher_) watcher_(event);
  }

  Sim& sim_;
  Watcher watcher_;
  std::map<AdapterName, sync::AdapterInfo> adapters_;
  std::set<AdapterName> archived_;
  std::map<AdapterName, std::vector<std::pair<Tick, fleet::AdapterPolicy>>> policies_;
  std::map<VersionKey, sync::VersionInfo> versions_;
  std::map<std::pair<AdapterName, AliasName>, VersionKey> aliases_;
  std::map<lorry::Digest, SimDirectory> images_;
  std::map<VersionKey, lorry::Digest> digests_;
  std::set<VersionKey> held_;
  std::optional<sync::HoldsMark> remembered_;
  struct BackedUp {
    std::map<VersionKey, sync::VersionInfo> versions;
    std::map<std::pair<AdapterName, AliasName>, VersionKey> aliases;
    std::set<VersionKey> held;
    std::optional<sync::HoldsMark> remembered;
  };
  BackedUp backup_;
  uint64_t contents_ = 0;
};

}  // namespace lorry::sim
