// What the store says of an image.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/digest.h"
#include "lib/base/ids.h"
#include "lib/transfer/checksum.h"

namespace lorry::proxy {

// What the store says of a version's image.
struct Manifest {
  Digest digest;
  uint64_t image_bytes = 0;
  std::string config_json;
  std::vector<transfer::Checksum> leaves;
  std::string ticket;
  std::vector<std::string> addresses;  // best first
};

// The store. Blocks within a deadline of its own; called on an executor.
using ManifestSource = std::function<absl::StatusOr<Manifest>(const VersionKey& key)>;

}  // namespace lorry::proxy
