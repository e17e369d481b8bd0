// When members are sent documents, and which.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/desired.h"
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
  ASSERT_EQ(fleet.Status().pools.size(), 1u) << "nor in what is shown";
  EXPECT_NE(fleet.Status().pools.front().adapter, AdapterName("code"));
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

TEST(Documents, SayWhatALeaseWantsAndWhatNobodyElseDoes) {
  Fleet fleet;
  fleet.Join("e1");
  for (uint64_t number = 1; number <= 3; ++number) {
    fleet.Publish(number);
    for (int i = 0; i < 2; ++i) fleet.Obey("e1");
  }
  fleet.Alias("best", VersionKey{kMath, RunId(1), VersionNumber(1)});
  EXPECT_FALSE(fleet.WantedOn("e1", 1)->leased);
  const Selector first{kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)};
  fleet.Lease(first, 60'000);
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->leased);
  fleet.Alias("best", std::nullopt);
  ASSERT_TRUE(fleet.Wants("e1", 1));
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->leased);
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->must);
  EXPECT_FALSE(fleet.WantedOn("e1", 3)->leased);
  fleet.Lease(kLatest, 60'000);
  EXPECT_TRUE(fleet.WantedOn("e1", 3)->leased) << "and it is served";
}

TEST(Documents, WantNothingThatTheEngineCannotServe) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Of("e1").limits.rank_limit = 16;
  fleet.Report("e1");
  fleet.Alias("large", fleet.Publish(1, {.rank_max = 64}));
  fleet.Alias("small", fleet.Publish(2, {.rank_max = 16}));
  EXPECT_FALSE(fleet.Wants("e1", 1));
  EXPECT_TRUE(fleet.Wants("e1", 2));
}

TEST(Documents, HaveTheAliasesOfEachAdapterOnce) {
  Fleet fleet;
  fleet.Step(AdapterSet{{AdapterName("zoo"), {}, RunId(1)}});
  fleet.Join("e1");
  const VersionKey ours = fleet.Publish(1);
  const VersionKey theirs{AdapterName("zoo"), RunId(1), VersionNumber(2)};
  fleet.Step(VersionStored{{theirs, Digest{"d2"}, {}}});
  fleet.Alias("best", ours);
  fleet.Step(AliasSet{theirs.adapter, AliasName("best"), theirs});
  EXPECT_EQ(fleet.said_.back().aliases.size(), 2u);
  EXPECT_EQ(fleet.said_.back().wanted.size(), 2u);
}

// Its kind gave the newest up: it serves what is proven, however few versions are kept.
TEST(Documents, WhatIsServedMustStayWhereItIsNotTheNewest) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet.Join(id);
  for (int i = 0; i < 2; ++i) {
    if (i == 0) fleet.Publish(1);
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet.Obey(id);
  }
  ASSERT_EQ(fleet.Committed(), 1u);
  const VersionKey second = fleet.Publish(2);
  for (const char* id : {"e1", "e2", "e3"}) fleet.Set(id, second, fleet::ResidencyState::kLoaded);
  fleet.Pass(60'000);
  ASSERT_EQ(fleet.Committed(), 2u);
  for (int i = 0; i < 2; ++i) fleet.Die("e4", second);
  EXPECT_EQ(fleet.Row("e4").target, fleet.NameOf({kMath, RunId(1), VersionNumber(1)}));
  ASSERT_TRUE(fleet.Wants("e4", 1));
  EXPECT_TRUE(fleet.WantedOn("e4", 1)->must);
}

// As after the store was lost: nobody could bring it back.
TEST(Documents, WhatIsLoadedInTheWindowStaysThoughTheStoreHasItNoMore) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 3}});
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  for (int round = 0; round < 3; ++round) fleet.Obey("e1");
  fleet.Publish(2);
  for (int round = 0; round < 3; ++round) fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 2u);
  fleet.Delete(first);
  EXPECT_TRUE(fleet.Wants("e1", 1));
}

// An engine that cannot fetch it would be excluded for that.
TEST(Documents, AWindowThatGrowsBringsNothingBackThatTheStoreHasDeleted) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  fleet.Join("e1");
  std::vector<VersionKey> versions;
  for (uint64_t number = 1; number <= 3; ++number) {
    versions.push_back(fleet.Publish(number));
    for (int round = 0; round < 3; ++round) fleet.Obey("e1");
  }
  ASSERT_EQ(fleet.Committed(), 3u);
  fleet.Delete(versions[0]);
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 3}});
  EXPECT_FALSE(fleet.Wants("e1", 1));
  EXPECT_TRUE(fleet.Wants("e1", 2));
}

// A proxy refuses a document of more, and would then have none at all.
TEST(Documents, LeaveTheOldestOutThatMayGoWhereTheyWouldBeTooLarge) {
  DesiredPart part;
  for (size_t i = 0; i < kWantedMax + 100; ++i) {
    const bool must = i < 50;  // as an alias wants it
    part.wanted.push_back({.name = EngineName(std::to_string(100'000 + i)),
                           .must = must,
                           .lag = must ? fleet::kLagNone : static_cast<uint32_t>(i / 10)});
  }
  const SetDesired message{.parts = {std::make_shared<const DesiredPart>(part)}};
  EXPECT_EQ(CountWanted(message), kWantedMax + 100);
  // The last of them are the oldest.
  part.wanted.resize(kWantedMax);
  EXPECT_EQ(message.Whole().wanted, part.wanted);
}

TEST(Documents, LeaveNothingOutThatMustBeThere) {
  DesiredPart part;
  for (size_t i = 0; i < kWantedMax + 100; ++i)
    part.wanted.push_back({.name = EngineName(std::to_string(100'000 + i)), .must = true});
  const SetDesired message{.parts = {std::make_shared<const DesiredPart>(part)}};
  EXPECT_EQ(message.Whole().wanted, part.wanted);
}

}  // namespace
}  // namespace lorry::sync
