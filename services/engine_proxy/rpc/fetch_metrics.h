// How images came to this node: metrics of a proxy and of its followers (docs/METRICS.md).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lib/metrics/registry.h"
#include "services/engine_proxy/driver/fetcher.h"

namespace lorry::proxy {

class FetchMetrics {
 public:
  explicit FetchMetrics(metrics::Registry& registry);

  void OnFetched(const std::string& transport, double seconds);  // any thread
  // What was counted so far; a count that began anew, as another fetcher's, goes on from there. The
  // scraper's thread.
  void Show(const Fetcher::Sources& sources, const std::map<std::string, uint64_t>& bytes);

 private:
  metrics::Registry& registry_;
  metrics::Counter from_store_, from_host_;
  Fetcher::Sources counted_;
  std::map<std::string, uint64_t> counted_bytes_;
};

}  // namespace lorry::proxy
