#include "lib/transfer/put_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <optional>

#include "lib/base/error.h"
#include "tests/contract/transfer/world.h"

namespace lorry::transfer {
namespace {

using testing::ElementsAre;

class PutTargetTest : public testing::Test {
 public:
  const Bytes image_ = MakeImage(4 * kMiB);
  Bytes bytes_ = Bytes(image_.size());
  std::vector<Range> reported_;
  const std::shared_ptr<PutTarget> target_ = PutTarget::Create(
      {.bytes = bytes_, .on_range = [this](const Range& range, std::span<const Checksum> pieces) {
         EXPECT_EQ(pieces.size(), PieceCount(range));
         reported_.push_back(range);
         return absl::OkStatus();
       }});

  absl::Status Finish(PutTarget::Slot slot, const Bytes& from) {
    const Range range = slot.range();
    std::memcpy(slot.destination().data(), from.data() + range.offset, range.length);
    return target_->Finish(std::move(slot), PieceChecksums(range, from, {}));
  }
  absl::Status Put(const Range& range, const Bytes& from) {
    auto slot = target_->Begin(range);
    return slot.ok() ? Finish(*std::move(slot), from) : slot.status();
  }
};

TEST_F(PutTargetTest, ReceivesInPlace) {
  auto slot = *target_->Begin({kMiB, kMiB});
  EXPECT_EQ(slot.destination().data(), bytes_.data() + kMiB);
  ASSERT_TRUE(Finish(std::move(slot), image_).ok());
  EXPECT_THAT(reported_, ElementsAre(Range{kMiB, kMiB}));
  EXPECT_THAT(target_->missing(), ElementsAre(Range{0, kMiB}, Range{2 * kMiB, 2 * kMiB}));
}

TEST(PutTarget, ARangeThatWouldBeAPieceTooManyStaysMissing) {
  const Bytes image = MakeImage(4 * kMiB);
  Bytes bytes(image.size());
  const auto target = PutTarget::Create({.bytes = bytes, .on_pieces = [](size_t pieces) {
                                           return pieces < 3 ? absl::OkStatus()
                                                             : absl::ResourceExhaustedError("full");
                                         }});
  const auto put = [&](const Range& range) {
    auto slot = *target->Begin(range);
    std::memcpy(slot.destination().data(), image.data() + range.offset, range.length);
    return target->Finish(std::move(slot), PieceChecksums(range, image, {}));
  };
  ASSERT_TRUE(put({0, 1000}).ok());
  ASSERT_TRUE(put({2000, 1000}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(put({4000, 1000})));
  EXPECT_THAT(target->received().Ranges(), ElementsAre(Range{0, 1000}, Range{2000, 1000}));
  EXPECT_TRUE(put({1000, 1000}).ok()) << "what joins others takes no room";
  EXPECT_TRUE(put({4000, 1000}).ok());
  EXPECT_EQ(bytes[4500], image[4500]);
}

TEST_F(PutTargetTest, WhatHasArrivedMayBeReadAndStaysWhenTheRestNeverComes) {
  ASSERT_TRUE(Put({0, kMiB}, image_).ok());
  EXPECT_EQ(target_->bytes().data(), bytes_.data());
  EXPECT_TRUE(*target_->Has({kMiB / 2, kMiB / 2}));
  EXPECT_FALSE(*target_->Has({0, 2 * kMiB}));
  auto slot = *target_->Begin({kMiB, kMiB});
  EXPECT_FALSE(*target_->Has({kMiB, 1})) << "it is just being written";
  target_->End(absl::AbortedError("gone"));
  EXPECT_TRUE(*target_->Has({0, kMiB}));
  EXPECT_TRUE(absl::IsAborted(target_->Has({0, 2 * kMiB}).status()));
}

TEST_F(PutTargetTest, ReportsOnlyWhatIsNew) {
  ASSERT_TRUE(Put({kMiB, kMiB}, image_).ok());
  ASSERT_TRUE(Put({kMiB, kMiB}, image_).ok());
  ASSERT_TRUE(Put({kMiB - 5, kMiB + 10}, image_).ok());
  EXPECT_THAT(reported_, ElementsAre(Range{kMiB, kMiB}, Range{kMiB - 5, 5}, Range{2 * kMiB, 5}));
  EXPECT_EQ(std::memcmp(bytes_.data() + kMiB - 5, image_.data() + kMiB - 5, kMiB + 10), 0);
}

TEST_F(PutTargetTest, NeverWritesTwice) {
  ASSERT_TRUE(Put({0, kMiB}, image_).ok());
  const Bytes other = MakeImage(image_.size(), 2);
  EXPECT_EQ(ReasonOf(Put({kMiB - 1, 2}, other)), "RANGE_CONFLICT");
  EXPECT_EQ(std::memcmp(bytes_.data(), image_.data(), kMiB), 0);
  EXPECT_EQ(bytes_[kMiB], std::byte{0}) << "nothing of the refused range is kept";
  EXPECT_EQ(ReasonOf(Put({2 * kMiB, 10}, image_)), "RANGE_CONFLICT") << "the upload is dead";
}

TEST_F(PutTargetTest, ABusyRangeIsFreeAgainWhenItsSlotIsLetGo) {
  std::optional<PutTarget::Slot> slot(*target_->Begin({0, kMiB}));
  EXPECT_EQ(ReasonOf(Put({kMiB - 1, 2}, image_)), "RANGE_BUSY");
  EXPECT_FALSE(target_->idle());
  slot.reset();
  EXPECT_TRUE(target_->idle());
  EXPECT_TRUE(Put({kMiB - 1, 2}, image_).ok());
}

TEST_F(PutTargetTest, WhatIsReceivedBesideIsBounded) {
  ASSERT_TRUE(Put({0, image_.size()}, image_).ok());
  std::vector<PutTarget::Slot> slots;
  for (int i = 0; i < PutTarget::kBesideMax; ++i)
    slots.push_back(*target_->Begin({i * kMiB / 2, 1}));
  EXPECT_EQ(ReasonOf(Put({3 * kMiB, 1}, image_)), "RANGE_BUSY");
  slots.clear();
  EXPECT_TRUE(Put({3 * kMiB, 1}, image_).ok());
}

TEST_F(PutTargetTest, CorruptBytesStayMissing) {
  auto slot = *target_->Begin({0, kMiB});
  const auto wrong = PieceChecksums(0, std::span(image_).subspan(kMiB, kMiB));
  EXPECT_EQ(ReasonOf(target_->Finish(std::move(slot), wrong)), "RANGE_CORRUPT");
  EXPECT_TRUE(target_->received().empty());
  EXPECT_TRUE(Put({0, kMiB}, image_).ok());
}

TEST_F(PutTargetTest, EndsOnceAndTellsWhenItIsQuiet) {
  std::optional<PutTarget::Slot> slot(*target_->Begin({0, kMiB}));
  target_->End(Error(absl::StatusCode::kFailedPrecondition, "RUN_FENCED", "a newer run"));
  target_->End(absl::InternalError("later"));
  EXPECT_FALSE(target_->idle());
  EXPECT_EQ(ReasonOf(Finish(std::move(*slot), image_)), "RUN_FENCED");
  slot.reset();
  EXPECT_TRUE(target_->idle());
  EXPECT_TRUE(reported_.empty());
}

TEST_F(PutTargetTest, ReservesOnlyWhatLiesInTheImage) {
  EXPECT_EQ(ReasonOf(Put({image_.size(), 1}, image_)), "BAD_RANGE");
  EXPECT_EQ(ReasonOf(target_->Begin({1, ~uint64_t{0}}).status()), "BAD_RANGE");
}

}  // namespace
}  // namespace lorry::transfer
