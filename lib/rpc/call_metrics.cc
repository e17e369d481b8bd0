#include "lib/rpc/call_metrics.h"

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "lib/base/mutex.h"

namespace lorry::rpc {
namespace {

// Methods and codes are few: services have a dozen calls, gRPC seventeen codes.
struct Histograms {
  Mutex mutex;
  std::map<std::pair<std::string, absl::StatusCode>, metrics::Histogram> by_call
      LORRY_GUARDED_BY(mutex);
};

}  // namespace

std::function<void(const CallReport&)> CallMetrics(metrics::Registry& registry) {
  auto histograms = std::make_shared<Histograms>();
  return [&registry, histograms](const CallReport& report) {
    MutexLock lock(histograms->mutex);
    const auto [it, is_new] =
        histograms->by_call.try_emplace({std::string(report.method), report.code});
    if (is_new) {
      it->second = registry.AddHistogram(
          "lorry_rpc_seconds", "One gRPC call, from its admission to its answer",
          metrics::DurationBuckets(),
          {{"method", it->first.first}, {"code", absl::StatusCodeToString(report.code)}});
    }
    it->second.Observe(report.seconds);
  };
}

}  // namespace lorry::rpc
