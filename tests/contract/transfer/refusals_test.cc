// What a server refuses, and what a client does not believe.
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::SizeIs;

using Refusals = TransportSuite;
LORRY_FOR_EVERY_TRANSPORT(Refusals);

constexpr uint64_t kSize = 3 * kMiB;

TEST_P(Refusals, TicketsThatAreNotOurs) {
  World world(GetParam());
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  const std::string good = fetch.ticket;
  TicketKeys others;
  others.Add(7, {});
  for (const std::string& bad : {std::string(), std::string("x"), good.substr(0, good.size() - 1),
                                 good + "x", TicketFor(others, Direction::kGet, "image", kSize)}) {
    fetch.ticket = bad;
    EXPECT_THAT(FetchAndWait(*world.transport, fetch),
                EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));
  }
  EXPECT_EQ(into, Bytes(kSize));
  EXPECT_THAT(world.handler.failed(), AllOf(SizeIs(5), Each("BAD_TICKET")));
}

TEST_P(Refusals, ExpiredTickets) {
  World world(GetParam());
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize);
  TicketClaims claims = ClaimsFor(Direction::kGet, "image", kSize);
  claims.expires_unix_ms = NowUnixMs() - 1;
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.ticket = *world.keys->Mint(claims);
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kPermissionDenied, "TICKET_EXPIRED"));

  const Bytes image = MakeImage(kSize);
  const auto target = world.handler.Expect("upload", kSize);
  claims.direction = Direction::kPut;
  claims.object = "upload";
  PushRequest push = world.PushOf("upload", image);
  push.ticket = *world.keys->Mint(claims);
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kPermissionDenied, "TICKET_EXPIRED"));
  EXPECT_TRUE(target->received().empty());
  EXPECT_THAT(world.handler.failed(), ElementsAre("TICKET_EXPIRED", "TICKET_EXPIRED"));
}

TEST_P(Refusals, TheOtherDirection) {
  World world(GetParam());
  Bytes image = MakeImage(kSize);
  world.handler.Serve("image", image);
  world.handler.Expect("image", kSize);
  FetchRequest fetch = world.FetchOf("image", image);
  PushRequest push = world.PushOf("image", image);
  std::swap(fetch.ticket, push.ticket);
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));
}

TEST_P(Refusals, RangesOutsideOfTheTicket) {
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  world.handler.Serve("image", image);
  world.handler.Expect("upload", kSize);
  TicketClaims claims = ClaimsFor(Direction::kGet, "image", kSize);
  claims.ranges = {{kMiB, kMiB}};
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.ticket = *world.keys->Mint(claims);
  fetch.ranges = {{kMiB, kMiB}};
  EXPECT_THAT(FetchAndWait(*world.transport, fetch), EndsWell());
  fetch.ranges = {{kMiB, kMiB + 1}};
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));

  claims.direction = Direction::kPut;
  claims.object = "upload";
  PushRequest push = world.PushOf("upload", image);
  push.ticket = *world.keys->Mint(claims);
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));
  EXPECT_THAT(world.handler.failed(), ElementsAre("BAD_TICKET", "BAD_TICKET"));
}

TEST_P(Refusals, ImagesOfAnotherLength) {
  World world(GetParam());
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize + kMiB);
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.ranges = {{0, kMiB}};
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kInvalidArgument, ""));
}

TEST_P(Refusals, WhatTheHandlerSays) {
  World world(GetParam());
  Bytes bytes(kSize);
  EXPECT_THAT(FetchAndWait(*world.transport, world.FetchOf("nothing", bytes)),
              EndsWithCode(StatusCode::kNotFound, "UNKNOWN_VERSION"));
  EXPECT_THAT(PushAndWait(*world.transport, world.PushOf("nothing", bytes)),
              EndsWithCode(StatusCode::kNotFound, "UNKNOWN_VERSION"));
  const auto target = world.handler.Expect("upload", kSize);
  target->End(Error(StatusCode::kFailedPrecondition, "RUN_FENCED", "a newer run has begun"));
  EXPECT_THAT(PushAndWait(*world.transport, world.PushOf("upload", bytes)),
              EndsWithCode(StatusCode::kFailedPrecondition, "RUN_FENCED"));
}

TEST_P(Refusals, RequestsThatMakeNoSense) {
  World world(GetParam());
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize);
  const FetchRequest good = world.FetchOf("image", into);
  FetchRequest bad = good;
  bad.options.range_bytes = 1000;
  EXPECT_THAT(FetchAndWait(*world.transport, bad), EndsWithCode(StatusCode::kInvalidArgument, ""));
  bad = good;
  bad.options.in_flight = 0;
  EXPECT_THAT(FetchAndWait(*world.transport, bad), EndsWithCode(StatusCode::kInvalidArgument, ""));
  bad = good;
  bad.ranges = {{kSize, 1}};
  EXPECT_THAT(FetchAndWait(*world.transport, bad),
              EndsWithCode(StatusCode::kOutOfRange, "BAD_RANGE"));
  bad = good;
  bad.ranges = {{1, ~uint64_t{0}}};
  EXPECT_THAT(FetchAndWait(*world.transport, bad),
              EndsWithCode(StatusCode::kOutOfRange, "BAD_RANGE"));
  bad = good;
  bad.leaves.resize(1);
  EXPECT_THAT(FetchAndWait(*world.transport, bad), EndsWithCode(StatusCode::kInvalidArgument, ""));
}

TEST_P(Refusals, StoredBytesThatRotted) {
  World world(GetParam());
  Bytes image = MakeImage(kSize);
  const auto leaves = LeavesOf(image);
  image[kMiB + 7] ^= std::byte{1};
  world.handler.ServeWithLeaves("image", image, leaves);
  Bytes into(kSize);
  const Outcome outcome = FetchAndWait(*world.transport, world.FetchOf("image", into));
  EXPECT_THAT(outcome, EndsWithCode(StatusCode::kDataLoss, "RANGE_CORRUPT"));
  EXPECT_FALSE(outcome.done.Contains({kMiB + 7, 1}));
}

TEST_P(Refusals, ASenderWhoseWordIsNotTheManifests) {
  World world(GetParam());
  world.handler.Serve("image", MakeImage(kSize, 2));
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.leaves = LeavesOf(MakeImage(kSize, 1));
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kDataLoss, "RANGE_CORRUPT"));
}

TEST_P(Refusals, PushedBytesWithoutTheirChecksum) {
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  const auto target = world.handler.Expect("upload", kSize);
  PushRequest push = world.PushOf("upload", image);
  push.options.range_bytes = kMiB;
  push.leaves = LeavesOf(image);
  push.leaves[1].bytes[3] ^= 1;
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kDataLoss, "RANGE_CORRUPT"));
  EXPECT_THAT(world.handler.failed(), ElementsAre("RANGE_CORRUPT"));
  EXPECT_FALSE(target->received().Overlaps({kMiB, kMiB}));
  // Nothing is lost: the sender makes good.
  push.leaves = LeavesOf(image);
  EXPECT_TRUE(Eventually([&] { return target->idle(); }));
  EXPECT_THAT(PushAndWait(*world.transport, push), EndsWell());
  EXPECT_TRUE(world.handler.Received("upload") == image);
}

TEST_P(Refusals, OtherBytesForARangeEndTheUpload) {
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  const auto target = world.handler.Expect("upload", kSize);
  ASSERT_THAT(PushAndWait(*world.transport, world.PushOf("upload", image)), EndsWell());
  EXPECT_THAT(PushAndWait(*world.transport, world.PushOf("upload", image)), EndsWell())
      << "the same again";
  Bytes other = image;
  other[kSize - 1] ^= std::byte{1};
  PushRequest push = world.PushOf("upload", other);
  push.ranges = {{kSize - 10, 10}};
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kAborted, "RANGE_CONFLICT"));
  EXPECT_THAT(PushAndWait(*world.transport, world.PushOf("upload", image)),
              EndsWithCode(StatusCode::kAborted, "RANGE_CONFLICT"));
  EXPECT_TRUE(world.handler.Received("upload") == image) << "what was there is still there";
}

}  // namespace
}  // namespace lorry::transfer
