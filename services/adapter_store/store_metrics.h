// The store's metric families; docs/METRICS.md lists them. Thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/metrics/per_adapter.h"
#include "lib/metrics/registry.h"
#include "lib/transfer/server.h"
#include "services/adapter_store/catalog/catalog.h"

namespace lorry::store {

class StoreMetrics {
 public:
  explicit StoreMetrics(metrics::Registry& registry);  // outlives it

  void UploadStored(int64_t took_ms);
  void UploadEnded(std::string_view result, std::string_view reason);
  void TransferFailed(const transfer::FailedSession& failed);
  void Evicted(int versions) { evicted_.Add(versions); }
  // At a scrape: gauges from the catalogue, counters moved on to what a server counts.
  void Refresh(Catalog& catalog) LORRY_EXCLUDES(mutex_);
  void Refresh(const std::string& data_dir);
  void Refresh(const std::string& transport, const transfer::TransportStats& stats)
      LORRY_EXCLUDES(mutex_);

 private:
  // A gauge is not there before it is known: a disk that keeps whoever reads it is no full one.
  void Set(const std::string& name, const std::string& help, double value);
  metrics::Counter UploadsEnded(std::string_view result, std::string_view reason);
  metrics::Counter TransferErrors(std::string_view transport, std::string_view reason);
  // A gauge that stands for an adapter, or for all that are beyond the cap.
  struct Share {
    std::string label;
    metrics::Gauge bytes;
  };
  void RefreshShares(Catalog& catalog) LORRY_EXCLUDES(mutex_);

  metrics::Registry& registry_;
  metrics::Histogram upload_seconds_;
  metrics::Counter evicted_;
  Mutex mutex_;
  metrics::PerAdapter<Share> shares_ LORRY_GUARDED_BY(mutex_);
  bool has_others_ LORRY_GUARDED_BY(mutex_) = false;  // there is a gauge for those beyond the cap
  std::map<std::string, transfer::TransportStats> last_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::store
