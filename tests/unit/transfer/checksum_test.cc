#include "lib/transfer/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/error.h"
#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

const Bytes kImage = MakeImage(3 * kMiB + 100);
const std::vector<Checksum> kLeaves = LeavesOf(kImage);

std::span<const std::byte> At(const Range& range) {
  return std::span(kImage).subspan(range.offset, range.length);
}

TEST(Checksums, OfARangeOnTheGridAreTheLeaves) {
  EXPECT_EQ(kLeaves.size(), 4u);
  const Range range{kMiB, 2 * kMiB + 100};
  EXPECT_THAT(PieceChecksums(range.offset, At(range)),
              testing::ElementsAreArray(kLeaves.begin() + 1, kLeaves.end()));
}

TEST(Checksums, AreTheSameWithLeavesAndWithout) {
  for (const Range& range :
       {Range{0, kImage.size()}, Range{5, 2 * kMiB}, Range{kMiB, 10}, Range{3 * kMiB + 99, 1}}) {
    EXPECT_EQ(PieceChecksums(range, kImage, kLeaves), PieceChecksums(range, kImage, {}))
        << ToString(range);
    EXPECT_EQ(PieceChecksums(range, kImage, {}).size(), PieceCount(range));
  }
}

TEST(VerifyRange, FindsEveryLie) {
  const Range range{kMiB - 10, kMiB + 20};
  const auto sums = PieceChecksums(range.offset, At(range));
  EXPECT_TRUE(VerifyRange(range, At(range), sums, kLeaves, kImage.size()).ok());
  for (size_t piece = 0; piece < sums.size(); ++piece) {
    auto wrong = sums;
    wrong[piece].bytes[15] ^= 1;
    EXPECT_EQ(ReasonOf(VerifyRange(range, At(range), wrong, {}, kImage.size())), "RANGE_CORRUPT");
  }
  EXPECT_FALSE(VerifyRange(range, At(range), std::span(sums).first(2), {}, kImage.size()).ok());
  auto leaves = kLeaves;
  leaves[1].bytes[0] ^= 1;
  EXPECT_EQ(ReasonOf(VerifyRange(range, At(range), sums, leaves, kImage.size())), "RANGE_CORRUPT");
  leaves = kLeaves;
  leaves[0].bytes[0] ^= 1;
  EXPECT_TRUE(VerifyRange(range, At(range), sums, leaves, kImage.size()).ok())
      << "leaf 0 is here in part only";
}

}  // namespace
}  // namespace lorry::transfer
