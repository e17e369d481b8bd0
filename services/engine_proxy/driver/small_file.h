// Files of a few KB that this process did not write.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lorry::proxy {

// NOT_FOUND when it cannot be read, or has more than 1 MiB: config files end far below.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace lorry::proxy
