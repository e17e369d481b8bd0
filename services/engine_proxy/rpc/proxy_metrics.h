// The proxy's metrics (docs/METRICS.md): the door's, timings of loads, gauges read off the machine at
// each scrape.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "lib/base/clock.h"
#include "lib/metrics/per_adapter.h"
#include "lib/metrics/registry.h"
#include "services/engine_proxy/door/door.h"
#include "services/engine_proxy/driver/fetcher.h"
#include "services/engine_proxy/driver/proxy.h"
#include "services/engine_proxy/rpc/door_metrics.h"
#include "services/engine_proxy/rpc/fetch_metrics.h"

namespace lorry::proxy {

// Versions that are to be loaded and for which nothing may leave the engine (NO_SLOT). An engine whose
// slots are all taken is well where something may: one that loads on demand is always full.
int64_t WithoutSlot(const fleet::Observed& observed);

class ProxyMetrics final : public DoorMetrics {
 public:
  explicit ProxyMetrics(metrics::Registry& registry);

  // What scrapes look at; all outlive the admin server. Once.
  void Watch(Proxy& proxy, const Fetcher& fetcher, const door::Door& door, const Clock& clock,
             const Followers& followers, std::function<bool()> attached);

  void OnBoot() { boots_.Add(); }
  void OnFetched(const std::string& transport, double seconds) {
    fetches_.OnFetched(transport, seconds);
  }
  void OnLoaded(double seconds) { load_seconds_.Observe(seconds); }
  void OnPaused(double seconds) { pause_seconds_.Observe(seconds); }
  void OnUnloaded(Outcome outcome);

 private:
  void Refresh();
  void ShowGaps(const Proxy::View& view);
  void ShowCounts(const Proxy::View& view, const door::Counts& counts);
  void ShowBindings(const Proxy::View& view);

  metrics::Registry& registry_;
  Proxy* proxy_ = nullptr;
  const Fetcher* fetcher_ = nullptr;
  const Followers* followers_ = nullptr;
  const door::Door* door_ = nullptr;
  const Clock* clock_ = nullptr;
  metrics::Histogram load_seconds_;
  FetchMetrics fetches_;
  metrics::Counter demand_loads_, demand_evictions_;
  DemandTally demand_counted_;  // the scraper's thread
  metrics::Counter pauses_overdue_;
  uint64_t overdue_counted_ = 0;  // likewise
  metrics::Histogram pause_seconds_;
  metrics::Counter boots_, unload_done_, unload_deadline_, unload_broken_, unload_refused_;
  struct Gap {
    metrics::Gauge mean, max;
  };
  // The scraper's thread.
  metrics::PerAdapter<metrics::Gauge> observed_, in_flight_;
  metrics::PerAdapter<Gap> gaps_;
  std::function<bool()> attached_;
  metrics::Gauge loaded_, retained_, slots_, without_slot_, wedged_, paused_, framework_paused_,
      live_, held_, attached_gauge_, followers_answering_;
};

}  // namespace lorry::proxy
