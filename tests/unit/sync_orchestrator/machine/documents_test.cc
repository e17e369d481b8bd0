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
  EXPECT_EQ(fleet.said_.back(), said);  // or a slow answer to the first would never count
  fleet.Report("e1");
  fleet.Pass(2'000);
  EXPECT_EQ(fleet.said_.size(), count + 1);
}

TEST(Documents, AnAdapterThatIsDeletedIsInThemNoMore) {
  Fleet fleet;
  fleet.Step(AdapterSet{{AdapterName("code"), {}, RunId(1)}});
  fleet.Join("e1");
  ASSERT_EQ(fleet.said_.back().rows.size(), 2u);
  fleet.Step(AdapterDeleted{AdapterName("code")});
  EXPECT_EQ(fleet.said_.back().rows.size(), 1u);
}

// Whether a slot is free is found out by documents that are fresh, before the next pool is looked at.
TEST(Documents, WhoeverIsDroppedWhileAnotherAdapterWaitsForASlotIsToldSo) {
  Fleet fleet;
  const AdapterName code("code");
  fleet.Step(AdapterSet{{code, {}, RunId(1)}});
  for (const char* id : {"e1", "e2"}) fleet.Join(id, 2);
  fleet.Publish(7);
  const auto publish = [&](uint64_t number) {
    const VersionKey key{code, RunId(1), VersionNumber(number)};
    fleet.Step(VersionStored{{key, Digest{"d" + std::to_string(number)}, {}}});
    return key;
  };
  const VersionKey first = publish(1);
  for (const char* id : {"e1", "e2"}) fleet.Set(id, first, fleet::ResidencyState::kLoaded);
  publish(2);
  ASSERT_EQ(fleet.Status().pools.at(0).waits_for, "NO_SLOT");
  ASSERT_TRUE(fleet.Wants("e2", 7));
  fleet.Of("e2").health = fleet::MemberHealth::kAsleep;
  fleet.Report("e2");
  EXPECT_FALSE(fleet.Wants("e2", 7)) << "its sync goes on without it";
}

}  // namespace
}  // namespace lorry::sync
