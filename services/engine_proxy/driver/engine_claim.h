// One proxy per engine: a lock on this host that names the engine's address and goes with the
// process.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace lorry::proxy {

class EngineClaim {
 public:
  // `directory`: the same for every proxy of this user on the host, and no other user's.
  // FAILED_PRECONDITION ENGINE_CLAIMED: another proxy on this host serves that engine; two would
  // unload each other's adapters.
  static absl::StatusOr<std::unique_ptr<EngineClaim>> Take(const std::string& directory,
                                                           const std::string& host, uint16_t port);
  ~EngineClaim();
  EngineClaim(const EngineClaim&) = delete;

 private:
  EngineClaim(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
};

}  // namespace lorry::proxy
