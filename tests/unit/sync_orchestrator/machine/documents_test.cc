// When members are sent documents, and which.
#include "gtest/gtest.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

TEST(Documents, AnOverdueOneIsSentAgainAsItWas) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Obey("e1");
  fleet.Publish(1);
  const fleet::Desired said = fleet.said_.back();
  const size_t count = fleet.said_.size();
  fleet.Pass(2'000);
  ASSERT_EQ(fleet.said_.size(), count + 1);
  EXPECT_EQ(fleet.said_.back(), said);
  fleet.Report("e1");  // late, and for the first of the two
  fleet.Pass(2'000);
  EXPECT_EQ(fleet.said_.size(), count + 1);
}

}  // namespace
}  // namespace lorry::sync
