#include "lib/rpc/credential_metrics.h"

#include "lib/rpc/access.h"
#include "lib/rpc/certificates.h"

namespace lorry::rpc {
namespace {

constexpr char kName[] = "lorry_certificate_expiry_timestamp_seconds";
constexpr char kHelp[] = "Unix time at which the certificate of a flag ends";

void Watch(metrics::Registry& registry, const char* flag, const std::string& path, Holds holds) {
  if (path.empty()) return;
  metrics::Gauge gauge = registry.AddGauge(kName, kHelp, {{"flag", flag}});
  registry.OnScrape([gauge, path, holds]() mutable {
    // The alert takes one that cannot be read for one that has ended.
    gauge.Set(static_cast<double>(EndOf(path, holds).value_or(0)));
  });
}

void WatchTokens(metrics::Registry& registry, const std::string& path) {
  if (path.empty()) return;
  metrics::Gauge gauge = registry.AddGauge(
      "lorry_tokens_file_valid",
      "1 while --auth-token-file can be understood; 0: the tokens of before stay valid", {});
  registry.OnScrape([gauge, path]() mutable { gauge.Set(CheckTokensFile(path).ok() ? 1 : 0); });
}

}  // namespace

void WatchCredentials(metrics::Registry& registry, const ServerTls& served,
                      const std::string& dialled_ca, const std::string& tokens_file) {
  Watch(registry, "tls-cert", served.cert, Holds::kChain);
  Watch(registry, "tls-client-ca", served.client_ca, Holds::kAuthorities);
  Watch(registry, "tls-ca", dialled_ca, Holds::kAuthorities);
  WatchTokens(registry, tokens_file);
}

}  // namespace lorry::rpc
