// The orchestrator's metrics (docs/METRICS.md): histograms fed by the SyncObserver, gauges read off
// the status at each scrape.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/metrics/per_adapter.h"
#include "lib/metrics/registry.h"
#include "services/sync_orchestrator/driver/orchestrator.h"
#include "services/sync_orchestrator/rpc/store_link.h"

namespace lorry::sync {

// What is told of a version that is served everywhere. Its series go with their adapter, and past
// 1,000 adapters the rest share `other`. Thread-safe.
class ServingMetrics {
 public:
  using AdapterNames = std::set<std::string, std::less<>>;
  explicit ServingMetrics(metrics::Registry& registry);
  void OnServing(const AdapterName& adapter, const PoolName& pool, double seconds)
      LORRY_EXCLUDES(mutex_);
  void KeepOnly(const AdapterNames& adapters) LORRY_EXCLUDES(mutex_);

 private:
  metrics::Registry& registry_;
  Mutex mutex_;
  std::set<PoolName> pools_ LORRY_GUARDED_BY(mutex_);  // in which any was served
  metrics::PerAdapter<std::string> labels_ LORRY_GUARDED_BY(mutex_);
};

// Both outlive what is returned.
SyncObserver::Sinks PhaseMetrics(metrics::Registry& registry, ServingMetrics& serving);

// How many decisions the row of the READY member that is furthest behind has missed. Decisions are
// counted and epochs are not subtracted, because a sync that was broken off has used an epoch too.
int64_t LargestLag(const Status& status, const PoolStatus& pool);

// Each once, of however many kinds of engines it killed some.
int64_t PoisonedVersions(const Status& status);

// Refreshed on the scraper's thread. All outlive it; it must outlive the admin server.
class Gauges {
 public:
  Gauges(metrics::Registry& registry, Orchestrator& orchestrator, const StoreLink& store,
         ServingMetrics& serving, const Clock& clock);

 private:
  using Family = std::pair<std::string, std::string>;  // name, help
  void Refresh();
  void ShowPool(const PoolStatus& pool);
  void ShowMembers(const Status& status);
  void ShowLag(const Status& status, const PoolStatus& pool);
  // Sets one gauge; those that were set at the last scrape and not at this one are removed.
  void Set(const Family& family, const metrics::Labels& labels, double value);

  metrics::Registry& registry_;
  Orchestrator& orchestrator_;
  const StoreLink& store_;
  ServingMetrics& serving_;
  const Clock& clock_;
  metrics::Gauge answers_;
  // The gauges that are shown; true: set by the refresh that runs.
  std::map<std::pair<std::string, metrics::Labels>, bool> shown_;
};

}  // namespace lorry::sync
