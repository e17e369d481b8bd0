// Measures syncs from what is persisted and notified: how long each phase took, how syncs ended.
//
// Driver's thread for On..., any thread for Times.
#pragma once

#include <functional>
#include <map>
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
  };
  explicit SyncObserver(Sinks sinks) : sinks_(std::move(sinks)) {}

  // A Ready's records became durable between `began` and `now`.
  void OnPersisted(const std::vector<Record>& records, Tick began, Tick now) LORRY_EXCLUDES(mutex_);
  // Every member that can serve a version does.
  void OnActive(const VersionKey& version, const PoolName& pool, Tick now) LORRY_EXCLUDES(mutex_);
  PhaseTimes Times(const VersionKey& version, const PoolName& pool, Tick watched_since, Tick now)
      LORRY_EXCLUDES(mutex_);

 private:
  struct Timeline {
    Tick staged_at = 0;     // the sync record became durable
    Tick decided_at = 0;    // the decision did
    int64_t commit_ms = 0;  // how long writing it took
    Tick active_at = 0;
  };
  using Key = std::pair<VersionKey, PoolName>;
  Timeline& At(const Key& key) LORRY_REQUIRES(mutex_);

  const Sinks sinks_;
  Mutex mutex_;
  std::map<Key, Timeline> timelines_ LORRY_GUARDED_BY(mutex_);
  std::vector<Key> order_ LORRY_GUARDED_BY(mutex_);  // oldest first, bounded
};

}  // namespace lorry::sync
