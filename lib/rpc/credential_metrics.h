// Whether what a program was given to know others and to be known by is of use, as metrics. Main's
// thread.
#pragma once

#include <string>

#include "lib/metrics/registry.h"
#include "lib/rpc/server.h"

namespace lorry::rpc {

// lorry_certificate_expiry_timestamp_seconds, for each file that is named: of `served`, and
// `dialled_ca`, the authority that other services are checked by; lorry_tokens_file_valid, of
// `tokens_file` where it is not empty. Read at each scrape, as servers and channels read files again
// that were replaced.
void WatchCredentials(metrics::Registry& registry, const ServerTls& served,
                      const std::string& dialled_ca, const std::string& tokens_file);

}  // namespace lorry::rpc
