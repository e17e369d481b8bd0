// How transfers end before their time: always, soon, with a reason, and with nothing left behind.
#include <malloc.h>

#include <atomic>
#include <fstream>

#include "tests/contract/transfer/kinds.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Endings = TransportSuite;
LORRY_FOR_EVERY_TRANSPORT(Endings);

constexpr uint64_t kSize = 32 * kMiB;

TEST_P(Endings, NobodyListens) {
  World world(GetParam());
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  world.server.reset();
  EXPECT_THAT(FetchAndWait(*world.transport, fetch), EndsWithCode(StatusCode::kUnavailable, ""));
}

TEST_P(Endings, CancelledWhileOpening) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  Running fetch(*world.transport, world.FetchOf("image", into));
  ASSERT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 1; }));
  fetch.Cancel();
  EXPECT_THAT(fetch.Wait(), EndsWithCode(StatusCode::kCancelled, ""));
  EXPECT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 0; }));
  EXPECT_THAT(world.handler.failed(), IsEmpty());
}

TEST_P(Endings, CancelledInTheMiddleAndResumed) {
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  const auto target = world.handler.Expect("upload", kSize);
  PushRequest push = world.PushOf("upload", image);
  push.options.range_bytes = kMiB;
  push.options.in_flight = 1;
  std::promise<Running*> self;
  const auto known = self.get_future().share();
  std::atomic<bool> asked = false;
  Running running(*world.transport, push, [&](const Range&, auto) {
    if (!asked.exchange(true)) known.get()->Cancel();
  });
  self.set_value(&running);
  const Outcome outcome = running.Wait();
  EXPECT_THAT(outcome, EndsWithCode(StatusCode::kCancelled, ""));
  EXPECT_GT(outcome.bytes, 0u);
  EXPECT_TRUE(Eventually([&] { return target->idle(); }));
  EXPECT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 0; }));
  EXPECT_THAT(world.handler.failed(), IsEmpty());

  push.ranges = outcome.done.Missing({0, kSize});
  const Outcome rest = PushAndWait(*world.transport, push);
  EXPECT_THAT(rest, EndsWell());
  EXPECT_EQ(rest.bytes + outcome.bytes, kSize);
  EXPECT_TRUE(world.handler.Received("upload") == image);
}

TEST_P(Endings, TheIdleDeadline) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  FetchRequest fetch = world.FetchOf("image", into);
  fetch.options.idle_deadline_ms = 100;
  EXPECT_THAT(FetchAndWait(*world.transport, fetch),
              EndsWithCode(StatusCode::kDeadlineExceeded, ""));
}

TEST_P(Endings, TheDeadlineOfTheWhole) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  PushRequest push = world.PushOf("image", into);
  push.options.deadline_ms = 100;
  EXPECT_THAT(PushAndWait(*world.transport, push), EndsWithCode(StatusCode::kDeadlineExceeded, ""));
}

TEST_P(Endings, MoreConnectionsThanTheServerTakes) {
  World world(GetParam(), {.sessions_max = 2});
  world.handler.AnswerNothing();
  std::vector<Bytes> into(2, Bytes(kMiB));
  std::vector<std::unique_ptr<Running>> waiting;
  for (Bytes& each : into) {
    waiting.push_back(std::make_unique<Running>(*world.transport, world.FetchOf("image", each)));
  }
  ASSERT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 2; }));
  Bytes third(kMiB);
  EXPECT_THAT(FetchAndWait(*world.transport, world.FetchOf("image", third)),
              EndsWithCode(StatusCode::kResourceExhausted, "TOO_MANY_SESSIONS"));
  for (const auto& each : waiting) each->Cancel();
  for (const auto& each : waiting)
    EXPECT_THAT(each->Wait(), EndsWithCode(StatusCode::kCancelled, ""));
  ASSERT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 0; }));
  EXPECT_THAT(world.handler.failed(), ElementsAre("TOO_MANY_SESSIONS"))
      << "and who cancels has left, which is no failure";
}

TEST_P(Endings, TheServerCloses) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  Running fetch(*world.transport, world.FetchOf("image", into));
  ASSERT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 1; }));
  world.server.reset();
  EXPECT_THAT(fetch.Wait(), EndsWithCode(StatusCode::kUnavailable, ""));
}

TEST_P(Endings, TheTransportCloses) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  Running fetch(*world.transport, world.FetchOf("image", into));
  world.transport.reset();
  ASSERT_TRUE(fetch.ended());
  EXPECT_THAT(fetch.Wait(), EndsWithCode(StatusCode::kCancelled, ""));
}

TEST_P(Endings, TheHandlerAnswersWhenEverybodyHasGone) {
  World world(GetParam());
  world.handler.AnswerNothing();
  Bytes into(kSize);
  Running fetch(*world.transport, world.FetchOf("image", into));
  ASSERT_TRUE(Eventually([&] { return world.server->stats().sessions_open == 1; }));
  fetch.Cancel();
  fetch.Wait();
  world.server.reset();
  world.handler.AnswerLate(Error(StatusCode::kNotFound, "UNKNOWN_VERSION", "too late"));
}

TEST_P(Endings, AStatusFromOnRangeEndsTheUpload) {
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  world.handler.Expect("upload", kSize, [](const Range& range) {
    return range.end() < 4 * kMiB
               ? absl::OkStatus()
               : Error(StatusCode::kFailedPrecondition, "RUN_FENCED", "a newer run");
  });
  PushRequest push = world.PushOf("upload", image);
  push.options.range_bytes = kMiB;
  EXPECT_THAT(PushAndWait(*world.transport, push),
              EndsWithCode(StatusCode::kFailedPrecondition, "RUN_FENCED"));
}

// What is held now. malloc keeps freed memory for each thread that came by, some dozens of MiB
// on a busy machine; it is given back before the measure.
uint64_t ResidentBytes() {
  ::malloc_trim(0);
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

TEST_P(Endings, MemoryStaysBounded) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  World world(GetParam());
  const Bytes image = MakeImage(kSize);
  world.handler.Serve("image", image);
  Bytes into(kSize);
  const auto fetch = [&] {
    ASSERT_THAT(FetchAndWait(*world.transport, world.FetchOf("image", into)), EndsWell());
  };
  for (int i = 0; i < 25; ++i) fetch();
  const uint64_t before = ResidentBytes();
  for (int i = 0; i < 25; ++i) fetch();
  // 25 × 32 MiB went by. One connection needs some hundreds of KB, but of the last fetch a whole
  // image may still be on its way out of the queues.
  EXPECT_LT(ResidentBytes(), before + 64 * kMiB);
}

}  // namespace
}  // namespace lorry::transfer
