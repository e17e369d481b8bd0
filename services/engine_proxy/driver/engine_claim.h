// One proxy per engine: a lock on this host that names the engine's address and goes with the
// process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "lib/base/file_lock.h"

namespace lorry::proxy {

// `directory`: the same for every proxy of this user on the host, and no other user's.
// FAILED_PRECONDITION ENGINE_CLAIMED: another proxy on this host serves that engine; two would
// unload each other's adapters.
absl::StatusOr<FileLock> ClaimEngine(const std::string& directory, const std::string& host,
                                     uint16_t port);

}  // namespace lorry::proxy
