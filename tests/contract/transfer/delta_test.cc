// An image that is told by what has changed since one that the receiver has.
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

constexpr uint64_t kSize = 5 * kMiB + 4'099;

Bytes AStepLater(Bytes image) {
  for (size_t i = 0; i < image.size(); i += 64) image[i] ^= std::byte{1};
  return image;
}

using WithABase = TransportSuite;
LORRY_FOR_EVERY_TRANSPORT(WithABase);

// What a transport cannot use it leaves alone.
TEST_P(WithABase, BytesArrive) {
  World world(GetParam());
  const Bytes base = MakeImage(kSize);
  const Bytes image = AStepLater(base);
  world.handler.Serve("base", base);
  world.handler.Serve("image", image);
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.base = {nullptr, base, TicketFor(*world.keys, Direction::kGet, "base", kSize)};
  fetch.leaves = LeavesOf(image);
  const Outcome outcome = FetchAndWait(*world.transport, fetch);
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.bytes, kSize);
  EXPECT_TRUE(into == image);
  EXPECT_EQ(outcome.spared > 0, std::string_view(GetParam()) == "grpc");
}

class DeltaTest : public testing::Test {
 protected:
  DeltaTest() {
    world_.handler.Serve("base", base_);
    world_.handler.Serve("image", image_);
  }
  FetchRequest Fetch(std::string base_ticket) {
    FetchRequest fetch = world_.FetchOf("image", into_);
    fetch.base = {nullptr, base_, std::move(base_ticket)};
    fetch.leaves = LeavesOf(image_);
    return fetch;
  }
  std::string TicketOf(const std::string& object, uint64_t bytes = kSize) {
    return TicketFor(*world_.keys, Direction::kGet, object, bytes);
  }
  World world_{"grpc"};
  const Bytes base_ = MakeImage(kSize);
  const Bytes image_ = AStepLater(base_);
  Bytes into_ = Bytes(kSize);
};

TEST_F(DeltaTest, FewBytesTravel) {
  const Outcome outcome = FetchAndWait(*world_.transport, Fetch(TicketOf("base")));
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_TRUE(into_ == image_);
  EXPECT_GT(outcome.spared, kSize * 9 / 10);
}

TEST_F(DeltaTest, OfSomeRangesThatBeginAnywhere) {
  FetchRequest fetch = Fetch(TicketOf("base"));
  fetch.ranges = {{3, 10'001}, {kMiB - 5, 2 * kMiB}};
  const Outcome outcome = FetchAndWait(*world_.transport, fetch);
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_GT(outcome.spared, kMiB);
  for (const Range& range : fetch.ranges) {
    EXPECT_TRUE(std::equal(into_.begin() + range.offset, into_.begin() + range.end(),
                           image_.begin() + range.offset));
  }
}

// While it comes, too, and the part that is not there yet is waited for.
TEST_F(DeltaTest, OfAnImageThatIsStillComing) {
  auto arrivals = std::make_shared<Arrivals>();
  world_.handler.ServePartly("coming", image_, arrivals);
  FetchRequest fetch = Fetch(TicketOf("base"));
  fetch.ticket = TicketOf("coming");
  Running running(*world_.transport, fetch);
  arrivals->Add({0, 2 * kMiB});
  arrivals->Add({2 * kMiB, kSize - 2 * kMiB});
  const Outcome outcome = running.Wait();
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_GT(outcome.spared, kSize / 2);
  EXPECT_TRUE(into_ == image_);
}

// Whoever may not read the base learns nothing by it, and who names one that is gone or of another
// length is served all the same.
TEST_F(DeltaTest, IsNotMadeOfWhatTheReceiverMayNotReadOrTheSenderHasNot) {
  world_.handler.Serve("shorter", MakeImage(kSize - 1));
  const auto other = TicketKeys::Generate();
  for (const std::string& ticket :
       {std::string("forged"), TicketFor(*other, Direction::kGet, "base", kSize),
        TicketFor(*world_.keys, Direction::kPut, "base", kSize), TicketOf("gone"),
        TicketOf("shorter", kSize - 1), std::string(5'000, 'x')}) {
    into_ = Bytes(kSize);
    const Outcome outcome = FetchAndWait(*world_.transport, Fetch(ticket));
    ASSERT_THAT(outcome, EndsWell()) << ticket.size();
    EXPECT_EQ(outcome.spared, 0u);
    EXPECT_TRUE(into_ == image_);
  }
}

TEST_F(DeltaTest, OfAnImageThatHasNothingInCommonIsNotSent) {
  world_.handler.Serve("image", MakeImage(kSize, 2));
  FetchRequest fetch = Fetch(TicketOf("base"));
  fetch.leaves = {};
  const Outcome outcome = FetchAndWait(*world_.transport, fetch);
  ASSERT_THAT(outcome, EndsWell());
  EXPECT_EQ(outcome.spared, 0u);
}

// The receiver's image is not what it says: the bytes are not the image's, and none is kept.
TEST_F(DeltaTest, ToAnotherBaseIsNoticed) {
  FetchRequest fetch = Fetch(TicketOf("base"));
  const Bytes wrong = MakeImage(kSize, 3);
  fetch.base->bytes = wrong;
  EXPECT_THAT(FetchAndWait(*world_.transport, fetch),
              EndsWithCode(absl::StatusCode::kDataLoss, "RANGE_CORRUPT"));
  EXPECT_TRUE(into_ == Bytes(kSize));
}

}  // namespace
}  // namespace lorry::transfer
