#include "lib/transfer/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "lib/base/error.h"
#include "lib/base/prng.h"

namespace lorry::transfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

RangeSet SetOf(std::vector<Range> ranges) { return RangeSet(ranges); }

TEST(RangeSet, JoinsWhatTouchesAndOverlaps) {
  EXPECT_THAT(SetOf({{0, 10}, {10, 5}}).Ranges(), ElementsAre(Range{0, 15}));
  EXPECT_THAT(SetOf({{0, 10}, {20, 10}, {5, 20}}).Ranges(), ElementsAre(Range{0, 30}));
  EXPECT_THAT(SetOf({{20, 10}, {0, 10}}).Ranges(), ElementsAre(Range{0, 10}, Range{20, 10}));
  EXPECT_EQ(SetOf({{0, 10}, {5, 10}, {5, 10}}).bytes(), 15u);
}

TEST(RangeSet, TellsWhatIsThereAndWhatIsMissing) {
  const RangeSet set = SetOf({{10, 10}, {30, 10}});
  EXPECT_THAT(set.Missing({0, 50}), ElementsAre(Range{0, 10}, Range{20, 10}, Range{40, 10}));
  EXPECT_THAT(set.Missing({12, 3}), IsEmpty());
  EXPECT_THAT(set.Common({15, 20}), ElementsAre(Range{15, 5}, Range{30, 5}));
  EXPECT_TRUE(set.Contains({10, 10}));
  EXPECT_FALSE(set.Contains({10, 11}));
  EXPECT_FALSE(set.Overlaps({20, 10}));
  EXPECT_THAT(RangeSet().Missing({0, 0}), IsEmpty());
}

TEST(RangeSet, RemovesTheMiddle) {
  RangeSet set = SetOf({{0, 30}});
  set.Remove({10, 10});
  EXPECT_THAT(set.Ranges(), ElementsAre(Range{0, 10}, Range{20, 10}));
  set.Remove({5, 100});
  EXPECT_THAT(set.Ranges(), ElementsAre(Range{0, 5}));
  EXPECT_EQ(set.bytes(), 5u);
}

// A rank that has some columns of every row, of an adapter with 98,304 rows in all.
TEST(RangeSet, HasRoomForColumnsOfManyRows) {
  RangeSet set;
  for (uint64_t row = 0; row < 98'304; ++row) ASSERT_TRUE(set.Add({row * 64, 16}).ok()) << row;
}

TEST(RangeSet, IsBounded) {
  RangeSet set;
  for (uint64_t i = 0; i < RangeSet::kPiecesMax; ++i) ASSERT_TRUE(set.Add({2 * i, 1}).ok());
  const absl::Status full = set.Add({2 * RangeSet::kPiecesMax, 1});
  EXPECT_EQ(ReasonOf(full), "TOO_MANY_RANGES");
  EXPECT_EQ(set.bytes(), RangeSet::kPiecesMax);
  EXPECT_TRUE(set.Add({1, 1}).ok()) << "joining needs no room";
}

TEST(RangeSet, AgreesWithABitmap) {
  Prng prng(3);
  for (int round = 0; round < 200; ++round) {
    RangeSet set;
    std::vector<bool> bits(64);
    for (int step = 0; step < 20; ++step) {
      const uint64_t offset = prng.Below(63);
      const Range range{offset, 1 + prng.Below(63 - offset)};
      const bool add = prng.Chance(600);
      if (add) {
        ASSERT_TRUE(set.Add(range).ok());
      } else {
        set.Remove(range);
      }
      for (uint64_t at = range.offset; at < range.end(); ++at) bits[at] = add;
    }
    uint64_t bytes = 0;
    for (uint64_t at = 0; at < bits.size(); ++at) {
      ASSERT_EQ(set.Contains({at, 1}), bits[at]) << "round " << round << " byte " << at;
      bytes += bits[at];
    }
    ASSERT_EQ(set.bytes(), bytes);
    // Asked of a part, it tells the same: each piece is as long as it can be, and nothing else.
    const uint64_t offset = prng.Below(63);
    const Range part{offset, 1 + prng.Below(63 - offset)};
    std::vector<Range> there, missing;
    for (uint64_t at = part.offset; at < part.end();) {
      uint64_t end = at;
      while (end < part.end() && bits[end] == bits[at]) ++end;
      (bits[at] ? there : missing).push_back({at, end - at});
      at = end;
    }
    ASSERT_EQ(set.Common(part), there) << "round " << round;
    ASSERT_EQ(set.Missing(part), missing) << "round " << round;
    ASSERT_EQ(set.Overlaps(part), !there.empty());
    ASSERT_EQ(set.Contains(part), missing.empty());
  }
}

TEST(CheckRange, RefusesWhatDoesNotLieInTheImage) {
  EXPECT_TRUE(CheckRange({9, 1}, 10).ok());
  EXPECT_TRUE(CheckRange({0, 10}, 10).ok());
  for (const Range& bad :
       {Range{0, 0}, Range{0, 11}, Range{10, 1}, Range{11, 1}, Range{1, ~uint64_t{0}},
        Range{~uint64_t{0}, 1}, Range{~uint64_t{0}, ~uint64_t{0}}}) {
    EXPECT_EQ(ReasonOf(CheckRange(bad, 10)), "BAD_RANGE") << ToString(bad);
  }
}

TEST(CutRanges, CutsAtMultiples) {
  const std::vector<Range> ranges = {{5, 20}, {40, 5}};
  EXPECT_THAT(CutRanges(ranges, 10),
              ElementsAre(Range{5, 5}, Range{10, 10}, Range{20, 5}, Range{40, 5}));
}

}  // namespace
}  // namespace lorry::transfer
