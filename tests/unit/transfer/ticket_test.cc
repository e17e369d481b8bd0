#include "lib/transfer/ticket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/error.h"

namespace lorry::transfer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kNow = 1'000'000;

TicketClaims Claims() {
  return {.ticket_id = "t1",
          .direction = Direction::kPut,
          .object = "upload-9",
          .image_bytes = 1000,
          .ranges = {{0, 10}, {500, 500}},
          .peer = "trainer",
          .expires_unix_ms = kNow + 1};
}

std::string ReasonFor(const TicketKeys& keys, std::string_view token, int64_t now = kNow) {
  return ReasonOf(keys.Verify(token, now).status());
}

TEST(Tickets, SayWhatTheMinterSaid) {
  const auto keys = TicketKeys::Generate();
  const auto claims = keys->Verify(*keys->Mint(Claims()), kNow);
  ASSERT_TRUE(claims.ok()) << claims.status();
  EXPECT_EQ(*claims, Claims());
}

TEST(Tickets, Expire) {
  const auto keys = TicketKeys::Generate();
  const std::string token = *keys->Mint(Claims());
  EXPECT_EQ(ReasonFor(*keys, token, kNow), "");
  EXPECT_EQ(ReasonFor(*keys, token, kNow + 1), "TICKET_EXPIRED");
}

TEST(Tickets, AnyChangedOrMissingByteIsRefused) {
  const auto keys = TicketKeys::Generate();
  const std::string token = *keys->Mint(Claims());
  for (size_t at = 0; at < token.size(); ++at) {
    std::string altered = token;
    altered[at] ^= 0x40;
    ASSERT_EQ(ReasonFor(*keys, altered), "BAD_TICKET") << at;
    ASSERT_EQ(ReasonFor(*keys, token.substr(0, at)), "BAD_TICKET") << at;
  }
  EXPECT_EQ(ReasonFor(*keys, token + "x"), "BAD_TICKET");
}

TEST(Tickets, OfAnImpossibleLengthAreNotLookedInto) {
  const auto keys = TicketKeys::Generate();
  const std::string token = *keys->Mint(Claims());
  const auto why = [&](std::string_view text) {
    return std::string(keys->Verify(text, kNow).status().message());
  };
  for (const size_t size : {size_t{0}, size_t{1}, size_t{36}})
    EXPECT_THAT(why(token.substr(0, size)), HasSubstr("impossible length")) << size;
  const std::string longest = token + std::string(kTicketBytesMax - token.size(), 'x');
  EXPECT_THAT(why(longest), HasSubstr("altered"));
  EXPECT_THAT(why(longest + "x"), HasSubstr("impossible length"));
}

TEST(Tickets, KeysRotate) {
  TicketKeys keys;
  EXPECT_EQ(keys.Mint(Claims()).status().code(), absl::StatusCode::kFailedPrecondition);
  keys.Add(1, {1});
  const std::string first = *keys.Mint(Claims());
  keys.Add(2, {2});
  const std::string second = *keys.Mint(Claims());
  EXPECT_EQ(ReasonFor(keys, first), "") << "the old key verifies as long as it is there";
  EXPECT_EQ(ReasonFor(keys, second), "");
  TicketKeys relay;
  relay.Add(2, {2});
  EXPECT_EQ(ReasonFor(relay, second), "");
  EXPECT_EQ(ReasonFor(relay, first), "BAD_TICKET");
  EXPECT_THAT(std::string(relay.Verify(first, kNow).status().message()), HasSubstr("not known"));
  keys.Remove(1);
  EXPECT_EQ(ReasonFor(keys, first), "BAD_TICKET");
  EXPECT_EQ(ReasonFor(keys, *keys.Mint(Claims())), "") << "what mints has not gone";
  keys.Add(1, {1});
  keys.Remove(1);
  EXPECT_EQ(ReasonFor(relay, *keys.Mint(Claims())), "") << "the other mints again";
  keys.Remove(2);
  EXPECT_EQ(keys.Mint(Claims()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Tickets, AtTheirLimitsFitOneHeader) {
  const auto keys = TicketKeys::Generate();
  TicketClaims claims = Claims();
  claims.image_bytes = kImageBytesMax;
  claims.ticket_id = claims.object = claims.peer = std::string(kTicketTextBytesMax, 'x');
  claims.ranges.assign(kTicketRangesMax, {kImageBytesMax - 1, 1});
  const auto token = keys->Mint(claims);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_LE(token->size(), kTicketBytesMax);
  EXPECT_EQ(*keys->Verify(*token, kNow), claims);
  claims.ranges.push_back({0, 1});
  EXPECT_FALSE(keys->Mint(claims).ok());
  for (std::string TicketClaims::*text :
       {&TicketClaims::ticket_id, &TicketClaims::object, &TicketClaims::peer}) {
    claims = Claims();
    claims.*text = std::string(kTicketTextBytesMax + 1, 'x');
    EXPECT_FALSE(keys->Mint(claims).ok());
  }
  for (std::string TicketClaims::*text : {&TicketClaims::ticket_id, &TicketClaims::object}) {
    claims = Claims();
    (claims.*text).clear();
    EXPECT_FALSE(keys->Mint(claims).ok());
  }
  claims = Claims();
  claims.peer = "";
  claims.direction = Direction::kGet;
  EXPECT_EQ(*keys->Verify(*keys->Mint(claims), kNow), claims);
  claims.direction = static_cast<Direction>(9);
  EXPECT_FALSE(keys->Mint(claims).ok());
  claims = Claims();
  claims.image_bytes = kImageBytesMax + 1;
  EXPECT_FALSE(keys->Mint(claims).ok());
  claims = Claims();
  claims.ranges = {{999, 2}};
  EXPECT_FALSE(keys->Mint(claims).ok());
}

TEST(CheckAllowed, KeepsToTheTicketsRanges) {
  EXPECT_TRUE(CheckAllowed(Claims(), {500, 500}).ok());
  EXPECT_EQ(ReasonOf(CheckAllowed(Claims(), {9, 2})), "BAD_TICKET");
  EXPECT_EQ(ReasonOf(CheckAllowed(Claims(), {999, 2})), "BAD_RANGE");
  TicketClaims whole = Claims();
  whole.ranges.clear();
  EXPECT_TRUE(CheckAllowed(whole, {0, 1000}).ok());
}

}  // namespace
}  // namespace lorry::transfer
