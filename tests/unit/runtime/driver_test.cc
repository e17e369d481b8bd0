#include "lib/runtime/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <latch>
#include <string>

#include "lib/base/error.h"
#include "tests/testing/captured_log.h"

namespace lorry::runtime {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Adds numbers. Each becomes a record, an effect and a reply; 0 is the tick; a negative one asks to
// be woken in -n ms.
class Adder {
 public:
  using Event = int;
  struct Ready {
    std::vector<std::string> records, effects, replies;
    std::optional<Tick> wake_at;
  };
  void Step(Tick now, const int& event) {
    if (event < 0) {
      ready_.wake_at = now - event;
      return;
    }
    sum_ += event;
    const std::string text = std::to_string(event);
    ready_.records.push_back("record " + text);
    ready_.effects.push_back("effect " + text);
    ready_.replies.push_back("reply " + text);
  }
  Ready TakeReady() { return std::exchange(ready_, {}); }
  int sum() const { return sum_; }

 private:
  int sum_ = 0;
  Ready ready_;
};

// A driver whose every act is written down, on a clock that the test moves.
class DriverTest : public testing::Test {
 protected:
  Driver<Adder>::Hooks Hooks() {
    return {.tick = [] { return 0; },
            .persist =
                [this](const Adder::Ready& ready) {
                  const absl::Status status = persist_status_;
                  for (const std::string& record : ready.records) acts_.push_back(record);
                  acts_.push_back(status.ok() ? "durable" : "not durable");
                  return status;
                },
            .run = [this](const std::string& effect) { acts_.push_back(effect); },
            .reply = [this](const std::string& reply) { acts_.push_back(reply); },
            .on_fatal = [this](const absl::Status&) { acts_.push_back("fatal"); }};
  }
  std::vector<std::string> TakeActs() { return std::exchange(acts_, {}); }

  ManualClock clock_;
  absl::Status persist_status_;
  std::vector<std::string> acts_;
};

TEST_F(DriverTest, RecordsAreDurableBeforeEffectsAndRepliesGoLast) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  ASSERT_TRUE(driver.Post(1).ok());
  ASSERT_TRUE(driver.Post(2).ok());
  EXPECT_TRUE(driver.Turn());
  EXPECT_THAT(TakeActs(), ElementsAre("record 1", "record 2", "durable", "effect 1", "effect 2",
                                      "reply 1", "reply 2"));
}

TEST_F(DriverTest, NothingIsPersistedWithoutRecords) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  EXPECT_TRUE(driver.Turn());
  EXPECT_THAT(TakeActs(), IsEmpty());
}

TEST_F(DriverTest, WakesTheMachineWhenItAskedFor) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  ASSERT_TRUE(driver.Post(-50).ok());
  driver.Turn();
  clock_.Advance(49);
  driver.Turn();
  EXPECT_THAT(TakeActs(), IsEmpty());
}

TEST_F(DriverTest, WakesOnceDue) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  ASSERT_TRUE(driver.Post(-50).ok());
  driver.Turn();
  clock_.Advance(50);
  driver.Turn();
  EXPECT_THAT(TakeActs(), ElementsAre("record 0", "durable", "effect 0", "reply 0"));
  driver.Turn();
  EXPECT_THAT(TakeActs(), IsEmpty()) << "once";
}

TEST_F(DriverTest, TimeInWhichItDidNotTurnIsNotTheMachines) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test", .turn_gap_max_ms = 1'000});
  ASSERT_TRUE(driver.Post(-5'000).ok());
  driver.Turn();
  clock_.Advance(60'000);  // the process was stopped
  driver.Turn();
  EXPECT_THAT(TakeActs(), IsEmpty()) << "one second has passed for the machine";
  EXPECT_EQ(driver.Now(), clock_.Now() - 59'000);
  for (int second = 0; second < 3; ++second) {
    clock_.Advance(1'000);
    driver.Turn();
  }
  clock_.Advance(999);
  driver.Turn();
  EXPECT_THAT(TakeActs(), IsEmpty());
  clock_.Advance(1);
  driver.Turn();
  EXPECT_THAT(TakeActs(), Contains("effect 0"));
}

// On the real clock. If its own waiting were a gap, 600 ms would take it a minute and a half.
TEST_F(DriverTest, AnIdleDriverLosesNoTime) {
  SteadyClock clock;
  std::promise<void> woken;
  auto hooks = Hooks();
  hooks.run = [&](const std::string&) { woken.set_value(); };
  Driver<Adder> driver({}, clock, std::move(hooks), {.name = "test", .turn_gap_max_ms = 2});
  ASSERT_TRUE(driver.Post(-600).ok());
  driver.Start();
  EXPECT_EQ(woken.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

TEST_F(DriverTest, ALostFenceEndsItBeforeAnyEffect) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  persist_status_ = Error(absl::StatusCode::kAborted, "CONDITION_FAILED", "another term");
  ASSERT_TRUE(driver.Post(1).ok());
  EXPECT_FALSE(driver.Turn());
  EXPECT_THAT(TakeActs(), ElementsAre("record 1", "not durable", "fatal"));
  EXPECT_EQ(driver.Post(2).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DriverTest, AFullDiskHoldsEffectsUntilThereIsRoom) {
  int tries = 0;
  auto hooks = Hooks();
  hooks.persist = [&](const Adder::Ready&) {
    ++tries;
    return tries < 3 ? Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "no room")
                     : absl::OkStatus();
  };
  CapturedLog log;
  Driver<Adder> driver({}, clock_, std::move(hooks), {.name = "test", .persist_retry_ms = 1});
  ASSERT_TRUE(driver.Post(1).ok());
  EXPECT_TRUE(driver.Turn());
  EXPECT_EQ(tries, 3);
  const std::string said = log.text();
  EXPECT_THAT(said, testing::HasSubstr("the test cannot write its records"));
  EXPECT_EQ(std::ranges::count(said, '\n'), 1) << "it is said once a minute";
  EXPECT_THAT(TakeActs(), ElementsAre("effect 1", "reply 1"));
}

TEST_F(DriverTest, AFullMailboxRefusesPostsButNotAnswers) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test", .mailbox_max = 1});
  ASSERT_TRUE(driver.Post(1).ok());
  EXPECT_EQ(ReasonOf(driver.Post(2)), "MAILBOX_FULL");
  driver.PostAnswer(3);
  driver.Turn();
  EXPECT_THAT(TakeActs(), testing::Contains("effect 3"));
}

// The orchestrator's fence travels beside the records, and the proxy's machine has no replies.
struct Quiet {
  using Event = int;
  struct Ready {
    int fence = 0;
    std::vector<int> records, effects;
    std::optional<Tick> wake_at;
  };
  void Step(Tick, const int& event) { ready.fence = event, ready.records.push_back(event); }
  Ready TakeReady() { return std::exchange(ready, {}); }
  Ready ready;
};

TEST_F(DriverTest, OfReportsThatWaitTheNewestOfEachKeyIsTaken) {
  Driver<Adder> driver(Adder(), clock_, Hooks(), {.name = "adder", .mailbox_max = 1});
  driver.PostLatest(7, 1);
  driver.PostLatest(8, 10);
  driver.PostLatest(7, 2);
  EXPECT_EQ(driver.waiting(), 2u);
  EXPECT_TRUE(driver.Post(100).ok());  // reports take nobody's room
  EXPECT_FALSE(driver.Post(100).ok());
  EXPECT_TRUE(driver.Turn());
  driver.PostLatest(7, 3);
  EXPECT_TRUE(driver.Turn());
  EXPECT_THAT(acts_, ::testing::IsSupersetOf({"effect 2", "effect 10", "effect 100", "effect 3"}));
  EXPECT_THAT(acts_, ::testing::Not(::testing::Contains("effect 1")));
}

TEST(Driver, PersistSeesTheWholeReady) {
  const ManualClock clock;
  int fence = 0;
  Driver<Quiet> driver(
      {}, clock,
      {.tick = [] { return 0; },
       .persist = [&](const Quiet::Ready& ready) { return fence = ready.fence, absl::OkStatus(); },
       .run = [](int) {}},
      {.name = "test"});
  ASSERT_TRUE(driver.Post(7).ok());
  EXPECT_TRUE(driver.Turn());
  EXPECT_EQ(fence, 7);
}

// From here on with real threads; ThreadSanitizer runs these.

TEST_F(DriverTest, StopCarriesOutWhatWasPosted) {
  Driver<Adder> driver({}, clock_, Hooks(), {.name = "test"});
  driver.Start();
  for (int i = 1; i <= 100; ++i) driver.PostAnswer(i);
  driver.Stop();
  EXPECT_EQ(std::count(acts_.begin(), acts_.end(), "reply 100"), 1);
  EXPECT_EQ(ReasonOf(driver.Post(1)), "SHUTTING_DOWN");
}

TEST_F(DriverTest, TakesEventsFromManyThreads) {
  std::atomic<int> replies = 0;
  auto hooks = Hooks();
  hooks.persist = [](const Adder::Ready&) { return absl::OkStatus(); };
  hooks.run = [](const std::string&) {};
  hooks.reply = [&](const std::string&) { ++replies; };
  Driver<Adder> driver({}, clock_, std::move(hooks), {.name = "test"});
  driver.Start();
  std::vector<std::thread> posters;
  std::atomic<int> accepted = 0;
  for (int t = 0; t < 4; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 1'000; ++i) accepted += driver.Post(1).ok() ? 1 : 0;
    });
  }
  for (auto& poster : posters) poster.join();
  std::promise<int> sum;
  ASSERT_TRUE(driver.Inspect([&](const Adder& adder) { sum.set_value(adder.sum()); }).ok());
  EXPECT_EQ(sum.get_future().get(), accepted);
  driver.Stop();
  EXPECT_EQ(replies, accepted);
}

TEST_F(DriverTest, AskWaitsForWhatTheMachineKnows) {
  const SteadyClock steady;
  Driver<Adder> driver({}, steady, Hooks(), {.name = "test"});
  const auto sum = [](const Adder& adder) { return adder.sum(); };
  EXPECT_EQ(driver.Ask(sum, steady.Now()).status().code(), absl::StatusCode::kDeadlineExceeded);
  driver.Start();
  ASSERT_TRUE(driver.Post(7).ok());
  const auto answer = driver.Ask(sum, steady.Now() + 30'000);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer, 7);
  driver.Stop();
  EXPECT_EQ(driver.Ask(sum, steady.Now() + 30'000).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(DriverTest, SleepsUntilWakeAt) {
  const SteadyClock steady;
  std::promise<void> woken;
  auto hooks = Hooks();
  hooks.reply = [&](const std::string& reply) {
    if (reply == "reply 0") woken.set_value();
  };
  Driver<Adder> driver({}, steady, std::move(hooks), {.name = "test"});
  driver.Start();
  ASSERT_TRUE(driver.Post(-5).ok());
  EXPECT_EQ(woken.get_future().wait_for(std::chrono::seconds(30)), std::future_status::ready);
  driver.Stop();
}

TEST_F(DriverTest, StopEndsAWaitForDiskSpace) {
  auto hooks = Hooks();
  std::latch tried(1);
  std::atomic<bool> first = true;
  hooks.persist = [&](const Adder::Ready&) {
    if (first.exchange(false)) tried.count_down();
    return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "");
  };
  Driver<Adder> driver({}, clock_, std::move(hooks),
                       {.name = "test", .persist_retry_ms = 1'000'000});
  driver.Start();
  driver.PostAnswer(1);
  tried.wait();
  driver.Stop();
  EXPECT_THAT(acts_, ElementsAre("fatal"));
}

}  // namespace
}  // namespace lorry::runtime
