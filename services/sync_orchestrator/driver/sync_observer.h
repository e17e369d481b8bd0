// Measures syncs: how long each phase took, and how syncs ended, and the versions that waited for
// one. It derives this from the records that the machine persists and from watches that it opens
// itself, so that the machine need not measure anything.
//
// The On... functions run on the driver's thread; Times may be called on any thread.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "services/sync_orchestrator/driver/ports.h"
#include "services/sync_orchestrator/machine/records.h"

namespace lorry::sync {

class SyncObserver {
 public:
  struct Sinks {
    std::function<void(std::string_view phase, double seconds)> phase = [](std::string_view,
                                                                           double) {};
    std::function<void(std::string_view result)> ended = [](std::string_view) {};
    // Every engine that can serves the version, so long after the orchestrator first saw it.
    std::function<void(const AdapterName&, const PoolName&, double seconds)> serving =
        [](const AdapterName&, const PoolName&, double) {};
  };
  explicit SyncObserver(Sinks sinks) : sinks_(std::move(sinks)) {}

  using Key = std::pair<VersionKey, PoolName>;

  // A Ready's records became durable between `began` and `now`. Returns what is to be watched until
  // its end, which is told by OnEnded: versions that wait now, and those just committed.
  std::vector<Key> OnPersisted(const std::vector<Record>& records, Tick began, Tick now)
      LORRY_EXCLUDES(mutex_);
  // What an earlier process left: as OnPersisted, but counts nothing again.
  std::vector<Key> OnRestored(const Records& records, Tick now) LORRY_EXCLUDES(mutex_);
  void OnEnded(const Key& key, WatchEvent::State state, Tick now) LORRY_EXCLUDES(mutex_);
  PhaseTimes Times(const VersionKey& version, const PoolName& pool, Tick watched_since, Tick now)
      LORRY_EXCLUDES(mutex_);

 private:
  struct Timeline {
    Epoch epoch;
    Tick seen_at = 0;       // the version first waited, or was synced at once
    Tick staged_at = 0;     // the sync record became durable
    Tick decided_at = 0;    // the decision did
    int64_t commit_ms = 0;  // how long writing it took
    Tick active_at = 0;
  };
  Timeline& At(const Key& key) LORRY_REQUIRES(mutex_);
  void HandleSync(const Key& key, Epoch epoch, Tick began) LORRY_REQUIRES(mutex_);
  void HandleDecision(const Key& key, const DecisionRecord& decision, Tick began, Tick now)
      LORRY_REQUIRES(mutex_);
  void FollowWaiting(const Key& key, Tick now, std::vector<Key>& follow) LORRY_REQUIRES(mutex_);
  void Follow(const Key& key, std::vector<Key>& follow) LORRY_REQUIRES(mutex_);

  const Sinks sinks_;
  Mutex mutex_;
  std::map<Key, Timeline> timelines_ LORRY_GUARDED_BY(mutex_);
  std::vector<Key> order_ LORRY_GUARDED_BY(mutex_);  // oldest first, bounded
  std::set<Key> followed_ LORRY_GUARDED_BY(mutex_);  // until OnEnded
  // By record key: the versions that the pool's last record turned away.
  std::map<std::string, std::vector<VersionKey>> refused_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::sync
