// Where a relay listens, as it travels between store and proxies: "relay://host:port", or
// "relay://name@host:port" where the relay's certificate has another name than its host, as a pod
// has that is dialled by its IP address.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::transfer {

inline constexpr std::string_view kRelayScheme = "relay";
// A DNS name has at most 253 bytes; nobody's host and certificate have both the longest.
inline constexpr size_t kRelayAddressBytesMax = 256;

struct RelayAddress {
  std::string tls_name;   // of its certificate; empty: the host
  std::string host_port;  // "10.0.0.7:4711"

  std::string ToString() const;
};

// `text` is hostile. INVALID_ARGUMENT.
absl::StatusOr<RelayAddress> ParseRelayAddress(std::string_view text);

}  // namespace lorry::transfer
