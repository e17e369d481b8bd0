#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/error.h"
#include "lib/transfer/ucx/wire.h"

namespace lorry::transfer::ucx {
namespace {

std::vector<Message> OneOfEachKind() {
  return {
      {.kind = Kind::kOpen, .session = 1, .direction = Direction::kPut, .ticket = "ticket"},
      {.kind = Kind::kOpened, .session = 2, .image_bytes = 200},
      {.kind = Kind::kGet, .session = 3, .request = 4, .range = {5, 6}},
      {.kind = Kind::kData,
       .session = 3,
       .request = 4,
       .range = {(1 << 20) - 1, 2},
       .pieces = {{{1}}, {{2}}}},
      {.kind = Kind::kPut,
       .session = 7,
       .request = 8,
       .range = {0, 8 << 20},
       .pieces = std::vector<Checksum>(8)},
      {.kind = Kind::kDone, .session = 9, .request = 10},
      {.kind = Kind::kDone,
       .session = 9,
       .status = Error(absl::StatusCode::kAborted, "RANGE_CONFLICT", "why")},
  };
}

TEST(Wire, EveryKindComesBackAsItWent) {
  for (const Message& message : OneOfEachKind()) {
    const auto decoded = Decode(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(Encode(*decoded), Encode(message));
    EXPECT_EQ(decoded->kind, message.kind);
    EXPECT_EQ(decoded->range, message.range);
    EXPECT_EQ(decoded->ticket, message.ticket);
    EXPECT_EQ(decoded->pieces, message.pieces);
    EXPECT_EQ(decoded->status.code(), message.status.code());
    EXPECT_EQ(ReasonOf(decoded->status), ReasonOf(message.status));
  }
}

TEST(Wire, CutAndLengthenedHeadersAreRefused) {
  for (const Message& message : OneOfEachKind()) {
    const std::string whole = Encode(message);
    for (size_t length = 0; length < whole.size(); ++length) {
      ASSERT_FALSE(Decode(std::string_view(whole).substr(0, length)).ok()) << length;
    }
    EXPECT_FALSE(Decode(whole + '\0').ok());
  }
}

TEST(Wire, RangesThatMakeNoSenseAreRefused) {
  for (const Range& bad :
       {Range{0, 0}, Range{0, (8 << 20) + 1}, Range{~uint64_t{0}, 1}, Range{kImageBytesMax, 1}}) {
    EXPECT_FALSE(Decode(Encode({.kind = Kind::kGet, .request = 1, .range = bad})).ok())
        << ToString(bad);
  }
  EXPECT_FALSE(
      Decode(Encode({.kind = Kind::kData, .range = {0, 1}, .pieces = std::vector<Checksum>(2)}))
          .ok());
}

TEST(Wire, LongWordsAreCutToTheirLimit) {
  const auto decoded =
      Decode(Encode({.kind = Kind::kDone, .status = absl::InternalError(std::string(5000, 'x'))}));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->status.message().size(), kStatusTextMax);
  const auto longest = Encode({.kind = Kind::kOpen, .ticket = std::string(kTicketBytesMax, 't')});
  EXPECT_LE(longest.size(), kHeaderBytesMax);
  EXPECT_TRUE(Decode(longest).ok());
}

}  // namespace
}  // namespace lorry::transfer::ucx
