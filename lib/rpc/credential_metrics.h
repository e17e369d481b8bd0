// When the certificates that a program was given end, as a metric. Main's thread.
#pragma once

#include <string>

#include "lib/metrics/registry.h"
#include "lib/rpc/server.h"

namespace lorry::rpc {

// lorry_certificate_expiry_timestamp_seconds, for each file that is named: of `served`, and
// `dialled_ca`, the authority that other services are checked by. Read at each scrape, as the server
// reads a file again that was replaced.
void WatchCertificates(metrics::Registry& registry, const ServerTls& served,
                       const std::string& dialled_ca);

}  // namespace lorry::rpc
