// Checksums of image bytes: XXH3-128 of each leaf, a leaf being 1 MiB on the image's fixed grid.
//
// A range that travels carries one checksum for each of its pieces, the parts into which the grid
// cuts it. The checksum of a piece that is a whole leaf is that leaf's, so a sender that knows the
// leaves hashes nothing and a receiver has the leaves for the digest when the last range arrives.
// Protects against accidents, not forgery: who may send is the ticket's business, what an image is
// the digest's. Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "lib/peft/digest.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {

using peft::kLeafBytes;
using peft::LeafCount;

// The canonical (big-endian) form of an XXH3-128 value, as it is written on the wire and into
// digests.
using Checksum = peft::Leaf;

// The bytes of a leaf: the last one of an image may be shorter.
constexpr Range LeafRange(uint64_t leaf, uint64_t image_bytes) {
  const uint64_t begin = leaf * kLeafBytes;
  return {begin, std::min(kLeafBytes, image_bytes - begin)};
}

// Whether `piece`, not empty, is a whole leaf.
constexpr bool IsLeaf(const Range& piece, uint64_t image_bytes) {
  return piece == LeafRange(piece.offset / kLeafBytes, image_bytes);
}

// How many pieces the grid cuts `range` into.
constexpr uint64_t PieceCount(const Range& range) {
  return range.length == 0 ? 0 : (range.end() - 1) / kLeafBytes - range.offset / kLeafBytes + 1;
}

// The checksums of the pieces of [offset, offset + data.size()), `data` being its bytes.
std::vector<Checksum> PieceChecksums(uint64_t offset, std::span<const std::byte> data);

// The same for a range of a whole image whose leaves are known (`leaves` may be empty): only pieces
// that are not whole leaves are hashed.
std::vector<Checksum> PieceChecksums(const Range& range, std::span<const std::byte> image,
                                     std::span<const Checksum> leaves);

// The leaves of a whole image.
std::vector<Checksum> LeavesOf(std::span<const std::byte> image);

// OK when `data`, the bytes of `range`, has the `claimed` piece checksums and, where `leaves` of an
// image of `image_bytes` are given, whole leaves have those too. Else DATA_LOSS RANGE_CORRUPT.
absl::Status VerifyRange(const Range& range, std::span<const std::byte> data,
                         std::span<const Checksum> claimed, std::span<const Checksum> leaves,
                         uint64_t image_bytes);

}  // namespace lorry::transfer
