#include "services/engine_proxy/rpc/fetch_metrics.h"

#include <utility>

namespace lorry::proxy {
namespace {

constexpr char kImages[] = "lorry_proxy_images_total";
constexpr char kImagesHelp[] = "Versions that came here whole, by where their image was";

// What was added since `before`.
double Growth(uint64_t now, uint64_t before) {
  return static_cast<double>(now < before ? now : now - before);
}

}  // namespace

FetchMetrics::FetchMetrics(metrics::Registry& registry)
    : registry_(registry),
      from_store_(registry.AddCounter(kImages, kImagesHelp, {{"from", "store"}})),
      from_host_(registry.AddCounter(kImages, kImagesHelp, {{"from", "host"}})) {}

void FetchMetrics::OnFetched(const std::string& transport, double seconds) {
  registry_
      .AddHistogram("lorry_transfer_seconds", "One image from asking to its last checked byte",
                    metrics::DurationBuckets(), {{"transport", transport}, {"direction", "in"}})
      .Observe(seconds);
}

void FetchMetrics::Show(const Fetcher::Sources& sources,
                        const std::map<std::string, uint64_t>& bytes) {
  from_store_.Add(Growth(sources.store, counted_.store));
  from_host_.Add(Growth(sources.host, counted_.host));
  counted_ = sources;
  for (const auto& [transport, now] : bytes) {
    registry_
        .AddCounter("lorry_proxy_fetch_bytes_total", "Image bytes fetched and verified",
                    {{"transport", transport}})
        .Add(Growth(now, counted_bytes_[transport]));
    counted_bytes_[transport] = now;
  }
}

}  // namespace lorry::proxy
