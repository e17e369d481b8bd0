// SHA-256 values and their text form. What goes into an adapter's digest is lib/peft/digest.h's
// business.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lorry {

struct Sha256 {
  std::array<uint8_t, 32> bytes{};
  auto operator<=>(const Sha256&) const = default;
};

Sha256 HashSha256(std::span<const std::byte> data);
Sha256 HashSha256(std::string_view data);

std::string ToHex(std::span<const uint8_t> bytes);
inline std::string ToHex(const Sha256& hash) { return ToHex(hash.bytes); }

// An adapter version's digest: names image bytes and config. Text: "sha256-xxh3:<64 hex>"; the leaf
// algorithm is part of it, so that digests of different leaf algorithms never compare equal.
struct Digest {
  std::string value;
  bool empty() const { return value.empty(); }
  auto operator<=>(const Digest&) const = default;
};

}  // namespace lorry
