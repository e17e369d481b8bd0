// The digest of a version: what names its image bytes and its config.
//
//   "sha256-xxh3:" + hex(SHA-256(preimage)), preimage =
//     "lorry.digest.v1\n" "xxh3-128\n"      domain and leaf algorithm
//     image length                           8 bytes, little-endian
//     leaf hashes in order                   16 bytes each, XXH3-128 (seed 0), canonical =
//     big-endian canonical config                       the bytes of CanonicalConfig(), to the end
//
// Leaf i covers [i MiB, (i + 1) MiB) of the image, the last what is left; the length fixes their
// number, so the preimage reads in one way only. Leaves are independent of how bytes travel, and
// each can be checked alone. testdata/digests.json holds vectors. Pure; a LeafHasher belongs to one
// thread at a time.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/digest.h"

namespace lorry::peft {

inline constexpr uint64_t kLeafBytes = 1u << 20;

struct Leaf {
  std::array<uint8_t, 16> bytes{};
  auto operator<=>(const Leaf&) const = default;
};

// How many leaves an image of this length has.
constexpr uint64_t LeafCount(uint64_t image_bytes) {
  return image_bytes / kLeafBytes + (image_bytes % kLeafBytes != 0 ? 1 : 0);
}

// The hash of one leaf's bytes (at most kLeafBytes of them).
Leaf LeafHash(std::span<const std::byte> bytes);

// Hashes an image that passes by in order, in pieces of any size.
class LeafHasher {
 public:
  LeafHasher();
  ~LeafHasher();
  LeafHasher(LeafHasher&&) noexcept;
  LeafHasher& operator=(LeafHasher&&) noexcept;

  void Add(std::span<const std::byte> bytes);
  uint64_t image_bytes() const { return image_bytes_; }
  // All leaves, the last one closed where the image ends. Call once.
  std::vector<Leaf> Finish();

 private:
  struct State;  // keeps xxhash.h out of this header
  std::unique_ptr<State> state_;
  std::vector<Leaf> leaves_;
  uint64_t image_bytes_ = 0;
};

// INVALID_ARGUMENT (no reason: a caller's slip) when the number of leaves is not
// LeafCount(image_bytes).
absl::StatusOr<Digest> DigestOf(uint64_t image_bytes, std::span<const Leaf> leaves,
                                std::string_view canonical_config);

}  // namespace lorry::peft
