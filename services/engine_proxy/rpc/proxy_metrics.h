// The proxy's metrics (docs/METRICS.md): the door's observer, timings of loads, gauges read off the
// machine at each scrape.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/metrics/registry.h"
#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/door/observer.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "services/engine_proxy/driver/proxy.h"

namespace lorry::proxy {

class ProxyMetrics final : public door::DoorObserver {
 public:
  explicit ProxyMetrics(metrics::Registry& registry);

  // What scrapes look at; all outlive the admin server. Once.
  void Watch(Proxy& proxy, const Fetcher& fetcher, const door::Door& door, const Clock& clock,
             std::function<bool()> attached);

  void OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) override
      LORRY_EXCLUDES(mutex_);
  void OnReplied(const std::string& adapter, std::optional<uint32_t> lag) override
      LORRY_EXCLUDES(mutex_);
  void OnFlipped(fleet::InFlightRule rule) override;
  void OnRefused(std::string_view reason) override LORRY_EXCLUDES(mutex_);
  void OnDemandWaited(double seconds) override;
  void OnFirstByte(double ms) override;
  void OnDone(int code, double seconds, uint64_t reply_bytes) override LORRY_EXCLUDES(mutex_);
  void OnBoot() { boots_.Add(); }
  void OnFetched(const std::string& transport, double seconds);
  void OnTimed(std::string_view verb, double seconds, Outcome outcome);

 private:
  void Refresh();
  void ShowGaps(const Proxy::View& view);
  void ShowCounts(const Proxy::View& view, const door::Counts& counts);

  metrics::Registry& registry_;
  Proxy* proxy_ = nullptr;
  const Fetcher* fetcher_ = nullptr;
  const door::Door* door_ = nullptr;
  const Clock* clock_ = nullptr;
  metrics::Histogram load_seconds_, first_byte_seconds_, request_seconds_;
  metrics::Histogram demand_wait_seconds_;
  metrics::Counter demand_loads_, demand_evictions_;
  DemandTally demand_counted_;  // the scraper's thread
  metrics::Counter aborted_, resumed_;
  metrics::Histogram pause_seconds_;
  metrics::Counter boots_, unload_done_, unload_deadline_, unload_refused_;
  std::function<bool()> attached_;
  metrics::Gauge loaded_, retained_, slots_, wedged_, paused_, live_, held_, attached_gauge_;
  Mutex mutex_;
  std::map<int, metrics::Counter> by_code_ LORRY_GUARDED_BY(mutex_);
  struct Lags {
    metrics::Histogram admitted, done;
  };
  Lags& LagsOf(const std::string& adapter) LORRY_REQUIRES(mutex_);
  std::map<std::string, Lags> lags_ LORRY_GUARDED_BY(mutex_);  // by adapter
  std::map<std::string, metrics::Counter, std::less<>> by_reason_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, double> fetched_;  // the scraper's thread: what was counted already
};

}  // namespace lorry::proxy
