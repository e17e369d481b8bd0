#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>

#include "lib/base/error.h"
#include "lib/runtime/executor.h"
#include "lib/runtime/loop.h"

namespace lorry::runtime {
namespace {

using ::testing::ElementsAre;

TEST(Mailbox, DrainsInOrderAtMostABatch) {
  Mailbox<int> mailbox(10);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(mailbox.Post(i).ok());
  std::vector<int> batch;
  EXPECT_TRUE(mailbox.Drain(batch, 3, std::nullopt));
  EXPECT_THAT(batch, ElementsAre(0, 1, 2));
  EXPECT_TRUE(mailbox.Drain(batch, 3, std::nullopt));
  EXPECT_THAT(batch, ElementsAre(3, 4));
}

TEST(Mailbox, WhatIsInsideWhenItClosesIsStillDrained) {
  Mailbox<int> mailbox(10);
  ASSERT_TRUE(mailbox.Post(1).ok());
  mailbox.Close();
  EXPECT_EQ(ReasonOf(mailbox.Post(2)), "SHUTTING_DOWN");
  std::vector<int> batch;
  EXPECT_TRUE(mailbox.Drain(batch, 3, std::nullopt));
  EXPECT_THAT(batch, ElementsAre(1));
  EXPECT_FALSE(mailbox.Drain(batch, 3, std::nullopt));
}

TEST(Mailbox, AWaitThatPassesGivesAnEmptyBatch) {
  Mailbox<int> mailbox(1);
  std::vector<int> batch = {7};
  EXPECT_TRUE(mailbox.Drain(batch, 1, std::chrono::milliseconds(1)));
  EXPECT_TRUE(batch.empty());
}

TEST(Loop, RunsTasksInOrderOnItsOwnThread) {
  Loop loop("test");
  std::vector<int> ran;
  bool current = false;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(loop.Post([&ran, i] { ran.push_back(i); }).ok());
  ASSERT_TRUE(loop.Post([&] { current = loop.IsCurrent(); }).ok());
  loop.Stop();
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
  EXPECT_TRUE(current);
  EXPECT_FALSE(loop.IsCurrent());
}

TEST(Loop, RunsTimersInTheOrderOfTheirTimes) {
  Loop loop("test");
  std::vector<int> ran;
  std::promise<void> last;
  ASSERT_TRUE(loop.Post([&] {
                    loop.After(20, [&] { ran.push_back(2), last.set_value(); });
                    loop.After(0, [&] { ran.push_back(0); });
                    loop.After(10, [&] { ran.push_back(1); });
                    loop.Cancel(loop.After(5, [&] { ran.push_back(99); }));
                  })
                  .ok());
  last.get_future().get();
  loop.Stop();
  EXPECT_THAT(ran, ElementsAre(0, 1, 2));
}

TEST(Loop, StopDropsTimersAndWhatTheyHold) {
  auto held = std::make_shared<int>(1);
  {
    Loop loop("test");
    ASSERT_TRUE(loop.Post([&loop, held] { loop.After(1'000'000, [held] {}); }).ok());
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(Executor, RunsWorkOnItsThreadsAtOnce) {
  Executor executor({.name = "test", .threads = 3});
  std::latch all_in(3);
  std::atomic<int> done = 0;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(executor.Submit([&] { all_in.arrive_and_wait(), ++done; }).ok());
  }
  executor.Stop();
  EXPECT_EQ(done, 3);
}

TEST(Executor, RefusesWhenTooMuchWaits) {
  Executor executor({.name = "test", .threads = 1, .waiting_max = 1});
  std::latch inside(1), leave(1);
  ASSERT_TRUE(executor.Submit([&] { inside.count_down(), leave.wait(); }).ok());
  inside.wait();
  ASSERT_TRUE(executor.Submit([] {}).ok());
  EXPECT_EQ(ReasonOf(executor.Submit([] {})), "MAILBOX_FULL");
  leave.count_down();
  executor.Stop();
  EXPECT_EQ(ReasonOf(executor.Submit([] {})), "SHUTTING_DOWN");
}

}  // namespace
}  // namespace lorry::runtime
