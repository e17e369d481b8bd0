// What one publish makes the machine look at, as counts: time would say more of the computer.
#include "gtest/gtest.h"
#include "tests/bench/machine/fleet.h"

namespace lorry::sync {
namespace {

struct Looked {
  uint64_t parts, members, events;
};

Looked ForOnePublish(size_t engines, size_t adapters) {
  BenchFleet fleet(engines, adapters);
  fleet.Publish(0);
  fleet.TakeSpent();
  const Work before = fleet.machine().work();
  const WatchEvent told = fleet.Publish(0);
  EXPECT_EQ(told.state, WatchEvent::State::kActive);
  EXPECT_EQ(told.done, engines);
  const Work after = fleet.machine().work();
  return {after.parts - before.parts, after.members - before.members, fleet.TakeSpent().events};
}

TEST(Work, GrowsWithTheEnginesAndNotWithTheirSquare) {
  const Looked few = ForOnePublish(50, 3);
  const Looked many = ForOnePublish(400, 3);
  EXPECT_LE(many.parts, 9 * few.parts);
  EXPECT_LE(many.members, 9 * few.members);
  EXPECT_LE(many.events, 9 * few.events);
}

TEST(Work, DoesNotGrowWithAdaptersThatDoNothing) {
  const Looked few = ForOnePublish(50, 2);
  const Looked many = ForOnePublish(50, 40);
  EXPECT_EQ(many.parts, few.parts);
  EXPECT_EQ(many.members, few.members);
}

}  // namespace
}  // namespace lorry::sync
