#include "lib/rpc/certificate_metrics.h"

#include <algorithm>

#include "lib/rpc/certificates.h"

namespace lorry::rpc {
namespace {

constexpr char kName[] = "lorry_certificate_expiry_timestamp_seconds";
constexpr char kHelp[] = "Unix time at which the certificate of a flag ends";

// A chain holds no longer than the first of it. Of authorities one is enough: while one is replaced
// by another, a file has both.
enum class Ends { kWithTheFirst, kWithTheLast };

void Watch(metrics::Registry& registry, const char* flag, const std::string& path, Ends rule) {
  if (path.empty()) return;
  metrics::Gauge gauge = registry.AddGauge(kName, kHelp, {{"flag", flag}});
  registry.OnScrape([gauge, path, rule]() mutable {
    const auto ends = CertificateEnds(path);
    if (!ends.ok()) return gauge.Set(0);  // which the alert takes for one that has ended
    const auto [first, last] = std::minmax_element(ends->begin(), ends->end());
    gauge.Set(static_cast<double>(rule == Ends::kWithTheFirst ? *first : *last));
  });
}

}  // namespace

void WatchCertificates(metrics::Registry& registry, const ServerTls& served,
                       const std::string& dialled_ca) {
  Watch(registry, "tls-cert", served.cert, Ends::kWithTheFirst);
  Watch(registry, "tls-client-ca", served.client_ca, Ends::kWithTheLast);
  Watch(registry, "tls-ca", dialled_ca, Ends::kWithTheLast);
}

}  // namespace lorry::rpc
