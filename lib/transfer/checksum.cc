#include "lib/transfer/checksum.h"

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::transfer {
namespace {

absl::Status Corrupt(const Range& range) {
  return Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT",
               absl::StrCat("range ", ToString(range),
                            " does not have its checksum; nothing of it was kept, send it again"));
}

}  // namespace

std::vector<Checksum> PieceChecksums(uint64_t offset, std::span<const std::byte> data) {
  const Range range{offset, data.size()};
  std::vector<Checksum> sums;
  sums.reserve(PieceCount(range));
  for (const Range& piece : CutRanges(std::span(&range, 1), kLeafBytes)) {
    sums.push_back(peft::LeafHash(data.subspan(piece.offset - offset, piece.length)));
  }
  return sums;
}

std::vector<Checksum> PieceChecksums(const Range& range, std::span<const std::byte> image,
                                     std::span<const Checksum> leaves) {
  LORRY_CHECK(CheckRange(range, image.size()).ok());
  if (leaves.empty())
    return PieceChecksums(range.offset, image.subspan(range.offset, range.length));
  LORRY_CHECK(leaves.size() == LeafCount(image.size()));
  std::vector<Checksum> sums;
  for (const Range& piece : CutRanges(std::span(&range, 1), kLeafBytes)) {
    sums.push_back(IsLeaf(piece, image.size())
                       ? leaves[piece.offset / kLeafBytes]
                       : peft::LeafHash(image.subspan(piece.offset, piece.length)));
  }
  return sums;
}

std::vector<Checksum> LeavesOf(std::span<const std::byte> image) {
  return PieceChecksums(0, image);
}

absl::Status VerifyRange(const Range& range, std::span<const std::byte> data,
                         std::span<const Checksum> claimed, std::span<const Checksum> leaves,
                         uint64_t image_bytes) {
  LORRY_CHECK(data.size() == range.length);
  if (claimed.size() != PieceCount(range)) return Corrupt(range);
  size_t index = 0;
  for (const Range& piece : CutRanges(std::span(&range, 1), kLeafBytes)) {
    const Checksum sum = peft::LeafHash(data.subspan(piece.offset - range.offset, piece.length));
    if (sum != claimed[index++]) return Corrupt(range);
    if (!leaves.empty() && IsLeaf(piece, image_bytes) && sum != leaves[piece.offset / kLeafBytes]) {
      return Corrupt(range);
    }
  }
  return absl::OkStatus();
}

}  // namespace lorry::transfer
