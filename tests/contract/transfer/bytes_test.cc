// What arrives is what was sent, whatever its size and order.
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using BytesArrive = TransportSuite;
LORRY_FOR_EVERY_TRANSPORT(BytesArrive);

// Around everything that has an edge: eager and rendezvous, the grid, the ranges.
const uint64_t kSizes[] = {1,        8'191,        8'192,    8'193,        kMiB - 1,     kMiB,
                           kMiB + 1, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 9 * kMiB + 17};

TEST_P(BytesArrive, FetchOfEverySize) {
  World world(GetParam());
  for (const uint64_t size : kSizes) {
    for (const bool with_leaves : {true, false}) {
      const Bytes image = MakeImage(size);
      world.handler.Serve("image", image, with_leaves);
      Bytes into(size);
      const Outcome outcome = FetchAndWait(*world.transport, world.FetchOf("image", into));
      ASSERT_THAT(outcome, EndsWell()) << size;
      EXPECT_EQ(outcome.bytes, size);
      EXPECT_EQ(outcome.transport, GetParam());
      ASSERT_TRUE(into == image) << size;
    }
  }
}

TEST_P(BytesArrive, PushOfEverySize) {
  World world(GetParam());
  for (const uint64_t size : kSizes) {
    for (const bool with_leaves : {true, false}) {
      const Bytes image = MakeImage(size);
      const auto target = world.handler.Expect("upload", size);
      PushRequest push = world.PushOf("upload", image);
      if (with_leaves) push.leaves = LeavesOf(image);
      ASSERT_THAT(PushAndWait(*world.transport, push), EndsWell()) << size;
      EXPECT_TRUE(target->missing().empty());
      ASSERT_TRUE(world.handler.Received("upload") == image) << size;
    }
  }
}

TEST_P(BytesArrive, AnEmptyImageNeedsATicketAndNoRange) {
  World world(GetParam());
  world.handler.Serve("image", {});
  Bytes into;
  EXPECT_THAT(FetchAndWait(*world.transport, world.FetchOf("image", into)), EndsWell());
  FetchRequest forged = world.FetchOf("image", into);
  forged.ticket = "forged";
  EXPECT_THAT(FetchAndWait(*world.transport, forged),
              EndsWithCode(absl::StatusCode::kPermissionDenied, "BAD_TICKET"));
}

TEST_P(BytesArrive, AnAdapterOfOrdinarySize) {
  World world(GetParam());
  const Bytes image = MakeImage(200'048'640);
  world.handler.Serve("image", image);
  Bytes into(image.size());
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.leaves = LeavesOf(image);
  ASSERT_THAT(FetchAndWait(*world.transport, fetch), EndsWell());
  EXPECT_TRUE(into == image);
  EXPECT_EQ(world.transport->stats().bytes_received, image.size());
}

TEST_P(BytesArrive, OnlyTheAskedRangesAreWritten) {
  World world(GetParam());
  const Bytes image = MakeImage(6 * kMiB + 100);
  world.handler.Serve("image", image);
  Bytes into(image.size());
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.ranges = {{10, 20}, {kMiB - 5, 10}, {3 * kMiB, 2 * kMiB}, {6 * kMiB + 99, 1}};
  RangeSet seen;
  const Outcome outcome =
      FetchAndWait(*world.transport, fetch, [&](const Range& range, auto pieces) {
        EXPECT_EQ(pieces.size(), PieceCount(range));
        EXPECT_FALSE(seen.Overlaps(range));
        ASSERT_TRUE(seen.Add(range).ok());
      });
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.done, RangeSet(fetch.ranges));
  EXPECT_EQ(seen, outcome.done);
  Bytes expected(image.size());
  for (const Range& range : fetch.ranges) {
    std::copy_n(image.begin() + range.offset, range.length, expected.begin() + range.offset);
  }
  EXPECT_TRUE(into == expected);
}

TEST_P(BytesArrive, RanksPushSlicesOfOneUploadAtOnce) {
  World world(GetParam());
  const Bytes image = MakeImage(10 * kMiB + 3);
  const auto target = world.handler.Expect("upload", image.size());
  std::vector<std::unique_ptr<Running>> ranks;
  const uint64_t slice = image.size() / 3;  // off the grid
  for (int rank = 0; rank < 3; ++rank) {
    PushRequest push = world.PushOf("upload", image);
    const uint64_t from = rank * slice;
    push.ranges = {{from, rank == 2 ? image.size() - from : slice}};
    push.options.range_bytes = kMiB;
    ranks.push_back(std::make_unique<Running>(*world.transport, push));
  }
  for (const auto& rank : ranks) EXPECT_THAT(rank->Wait(), EndsWell());
  EXPECT_TRUE(target->missing().empty());
  EXPECT_TRUE(world.handler.Received("upload") == image);
}

TEST_P(BytesArrive, TheSameRangesFromSeveralAtOnceAreOneUpload) {
  World world(GetParam());
  const Bytes image = MakeImage(8 * kMiB);
  uint64_t counted = 0;
  const auto target = world.handler.Expect("upload", image.size(), [&](const Range& range) {
    counted += range.length;
    return absl::OkStatus();
  });
  std::vector<std::unique_ptr<Running>> senders;
  for (int i = 0; i < 4; ++i) {
    PushRequest push = world.PushOf("upload", image);
    push.options.range_bytes = (1 + i % 2) * kMiB;
    senders.push_back(std::make_unique<Running>(*world.transport, push));
  }
  for (const auto& sender : senders) EXPECT_THAT(sender->Wait(), EndsWell());
  EXPECT_TRUE(world.handler.Received("upload") == image);
  EXPECT_EQ(counted, image.size()) << "every new byte is reported once";
}

TEST_P(BytesArrive, ManyReceiversAtOnce) {
  World world(GetParam());
  const Bytes image = MakeImage(5 * kMiB + 1);
  world.handler.Serve("image", image);
  constexpr int kReceivers = 24;
  std::vector<Bytes> into(kReceivers, Bytes(image.size()));
  std::vector<std::unique_ptr<Running>> receivers;
  for (Bytes& each : into) {
    receivers.push_back(std::make_unique<Running>(*world.transport, world.FetchOf("image", each)));
  }
  for (const auto& receiver : receivers) EXPECT_THAT(receiver->Wait(), EndsWell());
  for (const Bytes& each : into) EXPECT_TRUE(each == image);
  EXPECT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 0; }));
}

}  // namespace
}  // namespace lorry::transfer
