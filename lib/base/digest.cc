#include "lib/base/digest.h"

#include <openssl/sha.h>

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

}  // namespace lorry
