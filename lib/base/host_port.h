// "host:port" taken apart and put together, IPv6 addresses included. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry {

struct HostPort {
  // A name or an address; an IPv6 address stands here without its brackets.
  std::string host;
  uint16_t port = 0;

  // An IPv6 address gets its brackets back: "[::1]:80".
  std::string ToString() const;
  // Listening here means listening on every address of the machine: 0.0.0.0 or ::.
  bool IsWildcard() const;
};

// "127.0.0.1:80", "name:80" or "[::1]:80". INVALID_ARGUMENT otherwise; the message begins with
// `what`, which names the flag or field that the text came from.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, std::string_view what);

}  // namespace lorry
