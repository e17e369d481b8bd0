#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/transfer/ucx/wire.h"

namespace lorry::transfer::ucx {
namespace {

std::vector<Message> OneOfEachKind() {
  return {
      {.kind = Kind::kGet, .request = 4, .range = {5, 6}},
      {.kind = Kind::kData, .request = 4, .range = {(1 << 20) - 1, 2}, .pieces = {{{1}}, {{2}}}},
      {.kind = Kind::kPut, .request = 8, .range = {0, 8 << 20}, .pieces = std::vector<Checksum>(8)},
      {.kind = Kind::kDone, .request = 10},
  };
}

TEST(Wire, EveryKindComesBackAsItWent) {
  for (const Message& message : OneOfEachKind()) {
    const auto decoded = Decode(Encode(message));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(Encode(*decoded), Encode(message));
    EXPECT_EQ(decoded->kind, message.kind);
    EXPECT_EQ(decoded->range, message.range);
    EXPECT_EQ(decoded->pieces, message.pieces);
    EXPECT_EQ(decoded->request, message.request);
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

TEST(Wire, TheLongestHeaderIsTaken) {
  const auto longest = Encode(
      {.kind = Kind::kData, .range = {1, 8 << 20}, .pieces = std::vector<Checksum>(kPiecesMax)});
  EXPECT_LE(longest.size(), kHeaderBytesMax);
  EXPECT_TRUE(Decode(longest).ok());
}

}  // namespace
}  // namespace lorry::transfer::ucx
