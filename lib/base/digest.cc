#include "lib/base/digest.h"

#include <openssl/sha.h>

#include "lib/base/error.h"

namespace lorry {

Sha256 HashSha256(std::span<const std::byte> data) {
  Sha256 hash;
  SHA256(reinterpret_cast<const unsigned char*>(data.data()), data.size(), hash.bytes.data());
  return hash;
}

Sha256 HashSha256(std::string_view data) {
  return HashSha256(std::as_bytes(std::span(data.data(), data.size())));
}

std::string ToHex(std::span<const uint8_t> bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out(bytes.size() * 2, '\0');
  char* at = out.data();
  for (const uint8_t b : bytes) {
    *at++ = kHex[b >> 4];
    *at++ = kHex[b & 15];
  }
  return out;
}

absl::StatusOr<Sha256> Sha256FromHex(std::string_view hex) {
  Sha256 hash;
  const auto nibble = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  };
  if (hex.size() != 64)
    return Error(absl::StatusCode::kInvalidArgument, "", "a SHA-256 has 64 hex digits");
  for (size_t i = 0; i < 32; ++i) {
    const int high = nibble(hex[2 * i]), low = nibble(hex[2 * i + 1]);
    if (high < 0 || low < 0)
      return Error(absl::StatusCode::kInvalidArgument, "",
                   "a SHA-256 has lower-case hex digits only");
    hash.bytes[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return hash;
}

}  // namespace lorry
