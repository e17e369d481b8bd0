// When certificates end. Any thread; reads files.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::rpc {

// Unix time, in seconds, of the last moment at which it is valid.
int64_t EndOf(const X509* certificate);

// Of each certificate in the PEM file, in its order. INVALID_ARGUMENT when it cannot be read or has
// none.
absl::StatusOr<std::vector<int64_t>> CertificateEnds(const std::string& path);

// Until when a file is of use, by what is in it. A chain holds no longer than the first of it to end.
// Of authorities the last is enough: while one is replaced by another, a file has both.
enum class Holds { kChain, kAuthorities };
absl::StatusOr<int64_t> EndOf(const std::string& path, Holds holds);

}  // namespace lorry::rpc
