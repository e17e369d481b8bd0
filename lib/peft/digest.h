// The digest of a version: one hash over the bytes of its image and its config.
//
//   "sha256-xxh3:" + hex(SHA-256(preimage)), preimage =
//     "lorry.digest.v1\n" "xxh3-128\n"      domain and leaf algorithm
//     image length                           8 bytes, little-endian
//     leaf hashes in order                   16 bytes each: XXH3-128 with seed 0, in xxHash's
//                                            canonical (big-endian) representation
//     canonical config                       the bytes of CanonicalConfig(), to the end
//
// Leaf i covers the bytes [i MiB, (i + 1) MiB) of the image; the last leaf covers what is left. The
// image's length determines how many leaves there are, so a preimage can be read in one way only.
// Leaves do not depend on how the bytes travelled, and each can be checked alone.
// testdata/digests.json holds test vectors. These functions are pure; a LeafHasher belongs to one
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
