// blob::Store in a directory: <root>/staging/<key> is renamed to <root>/sealed/<key> by Seal. Any
// file system with rename and fsync will do; a tmpfs makes it a fast store that a reboot empties.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "lib/blob/store.h"

namespace lorry::blob {

struct LocalOptions {
  std::string root;             // created if its parent exists
  uint64_t free_bytes_min = 0;  // Create answers DISK_FULL rather than leave less than this free
  // How long after a Seal a spare file for the next blob of that size is made (spare_files.h).
  std::chrono::milliseconds spare_after{1'000};
};

// FAILED_PRECONDITION ALREADY_LOCKED while another process has it open; NOT_FOUND,
// PERMISSION_DENIED.
absl::StatusOr<std::unique_ptr<Store>> OpenLocalStore(const LocalOptions& options);

}  // namespace lorry::blob
