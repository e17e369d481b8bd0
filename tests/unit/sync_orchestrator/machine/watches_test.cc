// What is told to whoever watches a version, until it is final.
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

TEST(Watch, WaitsForMembersThatMayComeBackAfterARestart) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Restart();
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Pass(10'000);
  EXPECT_TRUE(fleet.told_.back().final) << "it did not come back";
  EXPECT_EQ(fleet.told_.back().done, 0u);
}

TEST(Watch, WaitsForWhoeverHasTheVersionLoadedWhateverElseIsSaidOfIt) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Join("b");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  fleet.Obey("a");
  fleet.Obey("b");
  ASSERT_EQ(fleet.told_.back().state, WatchEvent::State::kCommitted);
  fleet.Of("b").health = fleet::MemberHealth::kJoining;  // its engine answered with an error once
  fleet.Report("b");
  fleet.Obey("a");
  fleet.Pass(100);  // how far members are is told at a pace
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kCommitted) << "b is about to serve it";
  EXPECT_EQ(fleet.told_.back().done, 1u);
  fleet.Obey("b");
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kActive);
  EXPECT_EQ(fleet.told_.back().done, 2u);
}

void LimitRank(Fleet& fleet, const std::string& id, uint32_t limit) {
  fleet.Of(id).limits.rank_limit = limit;
  fleet.Report(id);
}

TEST(Watch, FailsOfAVersionThatNoEngineCanServeByItsLimits) {
  Fleet fleet;
  for (const char* id : {"a", "b"}) {
    fleet.Join(id);
    LimitRank(fleet, id, 8);
  }
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kFailed);
  EXPECT_EQ(fleet.told_.back().reason, "ENGINE_LIMITS");
  EXPECT_NE(fleet.told_.back().detail.find("a: rank 16 is above"), std::string::npos)
      << fleet.told_.back().detail;
  // It stays stored and pending: with other limits it is served.
  LimitRank(fleet, "a", 16);
  LimitRank(fleet, "b", 16);
  fleet.Obey("a");
  fleet.Obey("b");
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Watch, WaitsWhileAnEngineMayCome) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Join("b");
  LimitRank(fleet, "a", 8);
  fleet.Of("b").health = fleet::MemberHealth::kJoining;  // its engine is started again
  LimitRank(fleet, "b", 8);
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_FALSE(fleet.told_.back().final) << "b's engine may come back with another limit";
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kWaiting);
  fleet.Of("b").limits.rank_limit = 16;
  fleet.Of("b").health = fleet::MemberHealth::kReady;
  fleet.Report("b");
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Obey("b");
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Watch, WaitsForMoreEnginesWhereOneCanServeIt) {
  Fleet fleet;
  fleet.Policy({.min_engines = {.is_share = false, .value = 2}});
  fleet.Join("a");
  fleet.Join("b");
  LimitRank(fleet, "a", 8);
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_FALSE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().reason, "TOO_FEW_ENGINES");
}

TEST(Watch, WaitsWhileAMemberIsAwayThatMayComeBackWithOtherLimits) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Join("b");
  LimitRank(fleet, "a", 8);
  fleet.Step(SessionLost{fleet.SessionOf(MemberId("b"))});
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Pass(fleet.config_.lost_after_ms);
  EXPECT_TRUE(fleet.told_.back().final) << "it did not come back";
}

TEST(Watch, WaitsForNobodyWhomAnOperatorTookAway) {
  Fleet fleet;
  for (const char* id : {"a", "b", "c"}) fleet.Join(id);
  LimitRank(fleet, "a", 8);
  fleet.Step(MemberMarked{1, MemberId("b"), MemberMark::kExcluded, "driver update"});
  fleet.Step(MemberMarked{2, MemberId("c"), MemberMark::kDead, ""});
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().reason, "ENGINE_LIMITS");
  const std::string& detail = fleet.told_.back().detail;
  EXPECT_NE(detail.find("a: rank 16"), std::string::npos) << detail;
  EXPECT_NE(detail.find("b: EXCLUDED, driver update"), std::string::npos) << detail;
  EXPECT_EQ(detail.find("c:"), std::string::npos) << detail;
}

TEST(Watch, WaitsWhereNoLimitsAreInTheWay) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Step(MemberMarked{1, MemberId("a"), MemberMark::kExcluded, "driver update"});
  const VersionKey key = fleet.Publish(1, {.rank_max = 16});
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_FALSE(fleet.told_.back().final) << "somebody may include it again";
}

TEST(Watch, IsNotProlongedByLaterDecisions) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Join("b");
  const VersionKey first = fleet.Publish(1);
  fleet.Step(WatchOpened{1, first, kRollout});
  fleet.Obey("a");
  fleet.Obey("b");
  fleet.Obey("a");
  ASSERT_EQ(fleet.told_.back().state, WatchEvent::State::kCommitted) << "b has not opened it";
  fleet.Pass(fleet.config_.deliver_ms / 2);
  const VersionKey second = fleet.Publish(2);
  fleet.Obey("a");
  fleet.Set("b", second, fleet::ResidencyState::kLoaded);
  ASSERT_EQ(fleet.Committed(), 2u);
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Pass(fleet.config_.deliver_ms / 2);
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kActive);
}

TEST(Watch, IsNotProlongedBySyncsThatAreBrokenOffMeanwhile) {
  Fleet fleet;
  fleet.Join("a");
  fleet.Join("b");
  const VersionKey first = fleet.Publish(1);
  fleet.Step(WatchOpened{1, first, kRollout});
  fleet.Obey("a");
  fleet.Obey("b");
  fleet.Obey("a");
  ASSERT_EQ(fleet.told_.back().state, WatchEvent::State::kCommitted) << "b has not opened it";
  fleet.Publish(2);
  fleet.Pass(fleet.config_.deliver_ms / 2);
  fleet.Override(first, "");
  ASSERT_FALSE(fleet.Pool().last_decision->commit) << "the second was broken off";
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Pass(fleet.config_.deliver_ms / 2);
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Watch, EndsWhenItsPoolIsTakenFromThePolicy) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  const VersionKey waits = fleet.Publish(2);
  fleet.Step(WatchOpened{1, waits, kRollout});
  ASSERT_FALSE(fleet.told_.back().final);
  fleet.Pass(fleet.config_.lost_after_ms);
  fleet::AdapterPolicy policy = fleet.adapter_.policy;
  policy.pools = {{PoolName("eval"), {}}};
  fleet.Policy(policy);
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().reason, "UNKNOWN_POOL");
  EXPECT_EQ(fleet.told_.back().detail, "the policy of math names no pool rollout, only eval");
}

// The run that would pass it has published nothing yet, and may never do.
TEST(Watch, OfAVersionWhoseRunWasFencedEnds) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Step(WatchOpened{1, first, kRollout});
  ASSERT_FALSE(fleet.told_.back().final);
  fleet.NewRun();
  ASSERT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kFailed);
  EXPECT_EQ(fleet.told_.back().reason, "RUN_FENCED");
}

// What was decided before it is no successor of it: in its own pool, and in one that follows that.
TEST(Watch, OfAVersionWhoseRunWasFencedAfterAnOlderOneWasDecidedEndsLikewise) {
  Fleet fleet;
  const PoolName eval("eval");
  fleet::AdapterPolicy policy = fleet.adapter_.policy;
  policy.pools[eval] = {fleet::PoolSource::Kind::kPool, kRollout, {}};
  fleet.Policy(policy);
  fleet.Join("e1");
  fleet.Join("v1", 0, fleet::EngineKind::kVllm, eval);
  fleet.Publish(1);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.PoolOf(kRollout).committed->version.key.number, VersionNumber(1));
  const VersionKey second = fleet.Publish(2);
  fleet.Step(WatchOpened{1, second, kRollout});
  fleet.Step(WatchOpened{2, second, eval});
  fleet.told_.clear();
  fleet.NewRun();
  ASSERT_EQ(fleet.told_.size(), 2u);
  for (const WatchEvent& told : fleet.told_) EXPECT_EQ(told.reason, "RUN_FENCED");
}

TEST(Watch, OfAVersionThatARollbackPassedByNamesWhatIsServedInstead) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  const VersionKey second = fleet.Publish(2);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 2u);
  fleet.Override(first, "");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Step(WatchOpened{1, second, kRollout});
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kSuperseded);
  EXPECT_EQ(fleet.told_.back().superseded_by, first);
}

TEST(Watch, OfALeasedVersionThatTheStoreHasLostSaysSo) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Of("e1").health = fleet::MemberHealth::kAsleep;
  fleet.Report("e1");
  const VersionKey second = fleet.Publish(2);
  fleet.Lease({kMath, Selector::Kind::kNumber, {}, {}, second.number}, 60'000);
  fleet.Step(WatchOpened{1, second, kRollout});
  ASSERT_FALSE(fleet.told_.back().final);
  fleet.Pass(fleet.config_.lost_after_ms);
  fleet.Delete(second);
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().reason, "UNKNOWN_VERSION");
}

TEST(Watch, TellsHowFarEachMemberIs) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_EQ(fleet.Told("e1"), "ABSENT");
  EXPECT_EQ(fleet.Told("e2"), "ABSENT");
  fleet.Obey("e1");  // the first of its kind
  fleet.Pass(100);   // how far members are is told at a pace
  EXPECT_EQ(fleet.Told("e1"), "LOADED");
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Told("e2"), "LOADED");
  fleet.Obey("e1");
  fleet.Pass(100);
  EXPECT_EQ(fleet.Told("e1"), "LOADED active");
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Told("e2"), "LOADED active");
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Watch, TellsBytesAtItsPaceAndTheNewestOnly) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  const size_t told = fleet.told_.size();
  for (uint64_t done = 1; done <= 50; ++done) fleet.Fetch("e1", key, done);
  EXPECT_EQ(fleet.told_.size(), told);
  fleet.Pass(100);
  ASSERT_EQ(fleet.told_.size(), told + 1);
  EXPECT_EQ(fleet.told_.back().progress.at(0).bytes_done, 50u);
  fleet.Pass(100);
  EXPECT_EQ(fleet.told_.size(), told + 1) << "nothing is new";
  fleet.Obey("e1");
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kCommitted) << "a decision does not wait";
}

TEST(Watch, OfAPoolThatLosesItsLastMemberEndsAtItsPace) {
  Fleet fleet;
  fleet.store_is_silent_ = true;
  fleet.Join("e1");
  fleet.Step(WatchOpened{1, fleet.Publish(1), kRollout});
  EXPECT_EQ(fleet.told_.back().reason, "HOLD_PENDING");
  fleet.Step(MemberMarked{1, MemberId("e1"), MemberMark::kDead, "taken away"});
  fleet.Pass(100);
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kStored);
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Watch, SaysWhyAMemberTakesNoPart) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Join("e3");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  fleet.Of("e2").boot = BootId("e2.2");
  fleet.Report("e2");
  fleet.Pass(100);
  EXPECT_EQ(fleet.Told("e2"), "ABSENT ENGINE_RESTARTED");
  fleet.Step(SessionLost{fleet.SessionOf(MemberId("e3"))});
  fleet.Pass(100);
  EXPECT_EQ(fleet.Told("e3"), "ABSENT JOINING") << "it may come back yet";
  fleet.Pass(5'000);
  EXPECT_EQ(fleet.Told("e3"), "ABSENT LOST");
}

TEST(Watch, NamesAFewOfManyMembersThatTakeNoPart) {
  Fleet fleet;
  for (int i = 1; i <= 13; ++i) fleet.Join(absl::StrCat("e", i));
  fleet.Step(WatchOpened{1, fleet.Publish(1), kRollout});
  for (int i = 1; i <= 6; ++i) fleet.Move(absl::StrCat("e", i), "blue");
  fleet.Pass(100);
  EXPECT_EQ(fleet.told_.back().detail,
            "e1 dropped: MEMBER_MOVED, e2 dropped: MEMBER_MOVED, e3 dropped: MEMBER_MOVED, "
            "e4 dropped: MEMBER_MOVED, and 2 more");
}

TEST(Watch, SaysWhoHasMovedAndWaitsForItNoLonger) {
  Fleet fleet;
  for (const char* id : {"e1", "e2", "e3"}) fleet.Join(id);
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  fleet.Move("e2", "blue");
  fleet.Pass(100);
  EXPECT_EQ(fleet.told_.back().detail, "e2 dropped: MEMBER_MOVED");
  EXPECT_EQ(fleet.Pool().sync->members.at(1).dropped, Drop::kMoved);
  fleet.Obey("e1");
  fleet.Obey("e3");
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Watch, SaysWhyAFetchIsHeldUpAndStatusDoesToo) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  fleet.Fetch("e1", key, 0);
  EXPECT_EQ(fleet.Pool().detail, "");
  fleet.Of("e1").residencies.at(0).reason = "FETCH_UNANSWERED";
  fleet.Of("e1").residencies.at(0).detail = "no route to the store";
  fleet.Report("e1");
  fleet.Pass(100);
  const std::string why = "e1 fetching: FETCH_UNANSWERED: no route to the store";
  EXPECT_EQ(fleet.told_.back().detail, why);
  EXPECT_EQ(fleet.Pool().detail, why);
}

}  // namespace
}  // namespace lorry::sync
