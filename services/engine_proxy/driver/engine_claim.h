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
  // FAILED_PRECONDITION ENGINE_CLAIMED: another proxy on this host serves that engine; two would
  // unload each other's adapters.
  static absl::StatusOr<std::unique_ptr<EngineClaim>> Take(const std::string& host, uint16_t port);
  ~EngineClaim();
  EngineClaim(const EngineClaim&) = delete;

 private:
  explicit EngineClaim(int fd) : fd_(fd) {}
  const int fd_;
};

}  // namespace lorry::proxy
