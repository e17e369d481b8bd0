#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/transfer/session.h"
#include "lib/transfer/transport_set.h"

namespace lorry::transfer {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(Plan, KeepsAFewInFlight) {
  Plan plan({.range_bytes = kMiB, .in_flight = 2}, {}, 3 * kMiB + 1, 0);
  Range first, second, more;
  ASSERT_TRUE(plan.Next(first) && plan.Next(second));
  EXPECT_FALSE(plan.Next(more));
  plan.OnArrived(second, 1);
  ASSERT_TRUE(plan.Next(more));
  EXPECT_EQ(more, (Range{2 * kMiB, kMiB}));
  EXPECT_FALSE(plan.complete());
  plan.OnArrived(first, 2);
  ASSERT_TRUE(plan.Next(first));
  EXPECT_EQ(first, (Range{3 * kMiB, 1}));
  plan.OnArrived(more, 3);
  plan.OnArrived(first, 3);
  EXPECT_TRUE(plan.complete());
  EXPECT_EQ(plan.bytes(), 3 * kMiB + 1);
}

TEST(Plan, JoinsRangesThatOverlap) {
  Plan plan({.range_bytes = kMiB, .in_flight = 4}, {{0, 10}, {5, 10}}, kMiB, 0);
  Range range, more;
  ASSERT_TRUE(plan.Next(range));
  EXPECT_EQ(range, (Range{0, 15}));
  EXPECT_FALSE(plan.Next(more));
}

TEST(Plan, HasTwoDeadlines) {
  Plan plan({.deadline_ms = 1'000, .idle_deadline_ms = 300}, {}, kMiB, 100);
  EXPECT_TRUE(plan.CheckDeadlines(399).ok());
  EXPECT_EQ(plan.CheckDeadlines(400).code(), absl::StatusCode::kDeadlineExceeded);
  for (Tick now = 100; now < 1'100; now += 100) {
    plan.OnProgress(now);
    EXPECT_TRUE(plan.CheckDeadlines(now).ok());
  }
  plan.OnProgress(1'100);
  EXPECT_EQ(plan.CheckDeadlines(1'100).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST(Addresses, AreSchemeAndPlace) {
  EXPECT_EQ(SchemeOf("ucx://[::1]:p"), "ucx");
  EXPECT_EQ(HostPortOf("ucx://[::1]:p"), "[::1]:p");
  EXPECT_EQ(SchemeOf("host:1"), "");
  EXPECT_EQ(HostPortOf("host:1"), "host:1");
}

}  // namespace
}  // namespace lorry::transfer
