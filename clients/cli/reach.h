// Why a service cannot be reached where trying again will not help: gRPC calls all of it
// unavailable. The Python client says the same in its reach.py. Any thread; blocks some seconds at
// most.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "lib/rpc/channel.h"

namespace lorry::cli {

// FAILED_PRECONDITION TLS_FAILED: one side speaks TLS and the other does not, or they do not trust
// each other, and what to do about it. OK where TLS is fine, or nobody answers at `address`
// ("host:port"), which may change.
absl::Status CheckTls(const std::string& address, const rpc::ClientTls& tls);

// Unix time at which the certificate ends that the service at `address` shows; none where it shows
// none, or nobody answers.
std::optional<int64_t> ShownCertificateEnd(const std::string& address, const rpc::ClientTls& tls);

}  // namespace lorry::cli
