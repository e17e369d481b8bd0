// Which version of Lorry a service is: gRPC answers do not say it, the admin port's metrics do.
// Blocking; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::cli {

// Asks GET /metrics at "host:port"; UNAVAILABLE when nobody answers within two seconds.
absl::StatusOr<std::string> VersionAt(const std::string& admin_address);

// `version` of lorry_build_info in a page of metrics.
std::optional<std::string> VersionIn(std::string_view metrics);

}  // namespace lorry::cli
