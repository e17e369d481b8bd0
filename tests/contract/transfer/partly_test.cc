// Images that are still coming to whoever serves them: a relay's, or an upload.
#include <future>

#include "lib/transfer/session.h"
#include "lib/transfer/transport_set.h"
#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;

constexpr uint64_t kSize = 8 * kMiB;

class Partly : public testing::Test {
 public:
  // What is not there yet is other bytes, as in a file that is written anew.
  Bytes HalfWritten() const {
    Bytes half = image_;
    std::fill(half.begin() + kSize / 2, half.end(), std::byte{0xab});
    return half;
  }
  FetchRequest Fetch(Bytes& into) {
    FetchRequest request = world_.FetchOf("image", into);
    request.leaves = LeavesOf(image_);
    return request;
  }

  const Bytes image_ = MakeImage(kSize);
  const std::shared_ptr<Arrivals> arrivals_ = std::make_shared<Arrivals>();
  World world_{"grpc"};
};

TEST_F(Partly, IsSentAsItComes) {
  world_.handler.ServePartly("image", image_, arrivals_);
  arrivals_->Add({0, kSize / 2});
  Bytes into(kSize);
  std::atomic<uint64_t> seen = 0;
  Running fetch(*world_.transport, Fetch(into),
                [&](const Range& range, auto) { seen += range.length; });
  EXPECT_TRUE(Eventually([&] { return seen == kSize / 2; }));
  EXPECT_FALSE(fetch.ended());
  arrivals_->Add({kSize / 2, kSize / 2});
  EXPECT_THAT(fetch.Wait(), EndsWell());
  EXPECT_TRUE(into == image_);
}

TEST_F(Partly, NothingIsSentBeforeItIsThere) {
  world_.handler.ServePartly("image", HalfWritten(), arrivals_);
  arrivals_->Add({0, kSize / 2});
  Bytes into(kSize);
  std::atomic<uint64_t> seen = 0;
  Running fetch(*world_.transport, Fetch(into),
                [&](const Range& range, auto) { seen += range.length; });
  EXPECT_TRUE(Eventually([&] { return seen == kSize / 2; }));
  arrivals_->End(absl::UnavailableError("its own fetch failed"));
  const Outcome outcome = fetch.Wait();
  EXPECT_THAT(outcome, EndsWithCode(StatusCode::kUnavailable, ""));
  EXPECT_EQ(outcome.done.bytes(), kSize / 2) << "which a fetch elsewhere may leave out";
}

// A receiver leaves a place where it hears nothing for as long as it would wait here.
TEST_F(Partly, WhoWaitsForBytesHearsThatTheyAreStillComing) {
  world_.handler.ServePartly("image", image_, arrivals_);
  Bytes into(kSize);
  FetchRequest request = Fetch(into);
  request.options.idle_deadline_ms = kTrialIdleMs;
  Running fetch(*world_.transport, request);
  std::promise<void> never;
  never.get_future().wait_for(std::chrono::milliseconds(kTrialIdleMs + kTrialIdleMs / 4));
  EXPECT_FALSE(fetch.ended());
  arrivals_->End(absl::OkStatus());
  EXPECT_THAT(fetch.Wait(), EndsWell());
}

TEST_F(Partly, AStreamThatNothingComesForEnds) {
  World impatient("grpc", {.idle_deadline_ms = 700});
  impatient.handler.ServePartly("image", image_, arrivals_);
  Bytes into(kSize);
  FetchRequest request = impatient.FetchOf("image", into);
  request.options.deadline_ms = 60'000;
  const Outcome outcome = FetchAndWait(*impatient.transport, request);
  EXPECT_EQ(outcome.status, IdleFor(700)) << "by whoever serves, though the reader hears of it";
}

// The reader of an upload is not idle while the trainer is; the upload ends where it is.
TEST_F(Partly, AnUploadMayRestForLonger) {
  constexpr Tick kIdleMs = 700;
  World impatient("grpc", {.idle_deadline_ms = kIdleMs});
  const auto upload = impatient.handler.Expect("upload", kSize);
  impatient.handler.ServePartly("image", image_, upload);
  Bytes into(kSize);
  Running fetch(*impatient.transport, impatient.FetchOf("image", into));
  std::promise<void> never;
  never.get_future().wait_for(std::chrono::milliseconds(3 * kIdleMs));
  upload->End(absl::AbortedError("another attempt"));
  EXPECT_THAT(fetch.Wait(), EndsWithCode(StatusCode::kAborted, ""));
}

// Places that others want are not held by those who wait for a trainer that rests.
TEST_F(Partly, AnUploadThatRestsGivesWayWhereTheHouseIsFull) {
  constexpr Tick kIdleMs = 700;
  World full("grpc", {.sessions_max = 1, .idle_deadline_ms = kIdleMs});
  const auto upload = full.handler.Expect("upload", kSize);
  full.handler.ServePartly("image", image_, upload);
  Bytes into(kSize);
  EXPECT_EQ(FetchAndWait(*full.transport, full.FetchOf("image", into)).status, IdleFor(kIdleMs));
}

TEST_F(Partly, TheFirstEndCounts) {
  arrivals_->End(absl::OkStatus());
  arrivals_->End(absl::UnavailableError("no more"));
  EXPECT_TRUE(*arrivals_->Has({0, kSize}));
}

class PartlyElsewhere : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Every, PartlyElsewhere, testing::Values("memory", "ucx-shm"),
                         [](const auto& info) { return TestName(info.param); });

TEST_P(PartlyElsewhere, IsRefused) {
  World world(GetParam());
  world.handler.ServePartly("image", MakeImage(kSize), std::make_shared<Arrivals>());
  Bytes into(kSize);
  EXPECT_THAT(FetchAndWait(*world.transport, world.FetchOf("image", into)),
              EndsWithCode(StatusCode::kUnavailable, ""));
}

}  // namespace
}  // namespace lorry::transfer
