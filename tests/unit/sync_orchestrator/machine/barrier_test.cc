// Syncs in mode BARRIER: every door of the pool holds, then locks, before the decision.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::RowMode;
using ::testing::HasSubstr;

class Barrier : public ::testing::Test {
 protected:
  Barrier() {
    policy_.mode = fleet::SyncMode::kBarrier;
    fleet_.Policy(policy_);
    for (const char* id : {"e1", "e2"}) fleet_.Join(id);
    Decide(1);
  }
  void Obey() {
    for (const char* id : {"e1", "e2"}) fleet_.Obey(id);
  }
  VersionKey Decide(uint64_t number) {
    const VersionKey key = fleet_.Publish(number);
    for (int i = 0; i < 6; ++i) Obey();
    EXPECT_EQ(fleet_.Committed(), number);
    return key;
  }
  // Both engines have it, and their doors are asked to hold.
  VersionKey Hold(uint64_t number) {
    const VersionKey key = fleet_.Publish(number);
    for (int i = 0; i < 4 && Phase() != SyncPhase::kHolding; ++i) Obey();
    EXPECT_EQ(Phase(), SyncPhase::kHolding);
    return key;
  }
  VersionKey Lock(uint64_t number) {
    const VersionKey key = Hold(number);
    Obey();
    EXPECT_EQ(Phase(), SyncPhase::kLocking);
    return key;
  }
  // Its engine takes no part, and its door may be answering all the same.
  void Wedge(const std::string& id) {
    fleet_.Of(id).health = fleet::MemberHealth::kWedged;
    fleet_.Report(id);
  }
  void NeedOne() {
    policy_.min_engines = {false, 1};
    fleet_.Policy(policy_);
  }
  SyncPhase Phase() { return fleet_.Pool().phase; }
  Abort Why() { return fleet_.Pool().last_decision->why; }

  fleet::AdapterPolicy policy_;
  Fleet fleet_;
};

TEST_F(Barrier, IsDecidedOnceEveryDoorIsLocked) {
  Lock(2);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kLocked);
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Committed(), 1u) << "e2 only holds";
  fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Committed(), 2u);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kOpen);
  EXPECT_EQ(fleet_.Row("e1").serve_from, fleet_.Row("e1").epoch) << "and nothing older";
}

TEST_F(Barrier, NoDoorLocksBeforeAllHold) {
  Hold(2);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kHeld);
  EXPECT_EQ(fleet_.Row("e1").hold_for_ms, policy_.barrier_deadline_ms);
  fleet_.Obey("e1");
  EXPECT_EQ(Phase(), SyncPhase::kHolding);
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("hold: e2"));
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kHeld);
}

TEST_F(Barrier, EndsWithAHoldThatADoorEnded) {
  Hold(2);
  fleet_.Of("e1").rows[0].revoked = fleet_.Pool().sync->epoch;
  fleet_.Report("e1");
  EXPECT_EQ(Phase(), SyncPhase::kIdle);
  EXPECT_EQ(Why(), Abort::kHoldEnded);
  EXPECT_EQ(fleet_.Row("e2").mode, RowMode::kOpen) << "on what it served";
  EXPECT_EQ(fleet_.Row("e2").target, fleet_.NameOf(fleet_.versions_[0].key));
}

TEST_F(Barrier, AHoldOfAnEarlierSyncEndsNothing) {
  Hold(2);
  fleet_.Of("e1").rows[0].revoked = Epoch(1);
  fleet_.Report("e1");
  EXPECT_EQ(Phase(), SyncPhase::kHolding);
}

TEST_F(Barrier, ADoorThatDoesNotLockEndsItAtTheDeadline) {
  Lock(2);
  fleet_.Obey("e1");
  fleet_.Pass(policy_.barrier_deadline_ms);
  EXPECT_EQ(Why(), Abort::kBarrierDeadline);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kOpen);
  EXPECT_EQ(fleet_.Committed(), 1u);
}

TEST_F(Barrier, HeldForNothingAgainAndAgainIsTriedMoreSeldom) {
  for (int i = 0; i < 3; ++i) {
    while (Phase() != SyncPhase::kHolding) {
      if (fleet_.versions_.size() < 2) fleet_.Publish(2);
      Obey();
      fleet_.Pass(100);
    }
    fleet_.Pass(policy_.barrier_deadline_ms);
  }
  fleet_.Pass(fleet_.config_.retry_min_ms);
  EXPECT_EQ(Phase(), SyncPhase::kIdle);
  EXPECT_EQ(fleet_.Pool().waits_for, "RETRY_LATER");
}

TEST_F(Barrier, WaitsForADoorThatNobodyCanAsk) {
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.Pass(fleet_.config_.lost_after_ms);
  fleet_.Publish(2);
  fleet_.Obey("e1");
  EXPECT_EQ(Phase(), SyncPhase::kIdle);
  EXPECT_EQ(fleet_.Pool().waits_for, "MEMBER_UNREACHABLE");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("e2 has no session"));
  fleet_.Step(MemberMarked{9, MemberId("e2"), MemberMark::kDead, ""});
  for (int i = 0; i < 6; ++i) fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Committed(), 2u) << "an operator's word that it answers nobody";
}

TEST_F(Barrier, HoldsNoDoorWhileAnotherCannotBeAsked) {
  Wedge("e2");
  NeedOne();
  fleet_.Publish(2);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.Obey("e1");
  EXPECT_EQ(Phase(), SyncPhase::kStaging);
  EXPECT_EQ(fleet_.Pool().waits_for, "MEMBER_UNREACHABLE");
  fleet_.Pass(policy_.stage_deadline_ms);
  EXPECT_EQ(Why(), Abort::kUnreachable);
}

TEST_F(Barrier, SaysNothingOfADoorWhileItWaitsForAnEngineAgain) {
  Wedge("e2");
  NeedOne();
  const VersionKey key = fleet_.Publish(2);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Pool().waits_for, "MEMBER_UNREACHABLE");
  fleet_.Set("e1", key, fleet::ResidencyState::kFetched);  // the engine has lost it
  EXPECT_EQ(Phase(), SyncPhase::kStaging);
  EXPECT_EQ(fleet_.Pool().waits_for, "");
}

TEST_F(Barrier, ALockOutlivesItsSession) {
  Lock(2);
  fleet_.Obey("e1");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Committed(), 2u);
}

// An operator's pin breaks a sync off and begins the next in one step, so that doors hear of the
// next alone.
TEST_F(Barrier, ADoorThatIsLockedForASyncThatWasBrokenOffHoldsForTheNext) {
  policy_.max_staleness = 1;  // both keep v1
  fleet_.Policy(policy_);
  Decide(2);
  Lock(3);
  fleet_.Obey("e1");
  ASSERT_EQ(fleet_.Of("e1").rows[0].mode, RowMode::kLocked);
  const Epoch first = fleet_.Of("e1").rows[0].barrier;
  fleet_.Override(VersionKey{kMath, RunId(1), VersionNumber(1)}, "");
  ASSERT_EQ(Phase(), SyncPhase::kHolding);
  fleet_.Of("e2").rows[0].mode = RowMode::kHeld;
  fleet_.Of("e2").rows[0].barrier = fleet_.Row("e2").epoch;
  fleet_.Report("e2");
  fleet_.Report("e1");
  EXPECT_EQ(Phase(), SyncPhase::kLocking) << "e1 is still LOCKED for epoch " << first.value;
}

// A proxy that is restarted, or a connection that breaks, is away for a moment.
TEST_F(Barrier, OutlivesAShortLossOfASessionWhereAllEnginesAreNeeded) {
  policy_.min_engines = {.is_share = true, .value = 100};
  fleet_.Policy(policy_);
  Lock(2);
  fleet_.Obey("e1");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  ASSERT_EQ(Phase(), SyncPhase::kLocking);
  fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Committed(), 1u) << "e1 may have lost its engine meanwhile";
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("a session again: e1"));
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Barrier, IsBrokenOffWhereOneThatIsNeededComesBackWithoutTheVersion) {
  policy_.min_engines = {.is_share = true, .value = 100};
  fleet_.Policy(policy_);
  Lock(2);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  ASSERT_EQ(Phase(), SyncPhase::kLocking);
  fleet_.Of("e1").boot = BootId("another");
  fleet_.Of("e1").residencies.clear();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(Why(), Abort::kTooFewEngines);
}

TEST_F(Barrier, IsBrokenOffWhereOneThatIsNeededHasLostTheVersion) {
  policy_.min_engines = {.is_share = true, .value = 100};
  fleet_.Policy(policy_);
  const VersionKey key = Lock(2);
  fleet_.Set("e1", key, fleet::ResidencyState::kFetched);
  EXPECT_EQ(Why(), Abort::kTooFewEngines);
}

TEST_F(Barrier, IsBrokenOffWhereOneThatIsNeededStaysAway) {
  policy_.min_engines = {.is_share = true, .value = 100};
  fleet_.Policy(policy_);
  Lock(2);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_EQ(Why(), Abort::kTooFewEngines);
}

TEST_F(Barrier, ADoorThatNobodyCanAskIsStillWaitedFor) {
  NeedOne();
  Lock(2);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Committed(), 1u);
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("lock: e2 (no session)"));
}

TEST_F(Barrier, AsksDoorsOfEnginesThatTakeNoPart) {
  Wedge("e2");
  NeedOne();
  fleet_.Publish(2);
  for (int i = 0; i < 6; ++i) fleet_.Obey("e1");
  EXPECT_EQ(Phase(), SyncPhase::kHolding) << "its door may be answering";
  fleet_.Obey("e2");
  fleet_.Obey("e1");
  EXPECT_EQ(Phase(), SyncPhase::kLocking);
  fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Barrier, ANewReignLetsGoAndBeginsAgainWithStaging) {
  Lock(2);
  Obey();
  fleet_.Restart();
  for (const char* id : {"e1", "e2"}) fleet_.Rejoin(id, fleet_.DesiredTerm(id));
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kOpen);
}

// It may have let go since: the first document of this reign tells it to.
TEST_F(Barrier, ALockThatAnEarlierReignWasToldOfIsNoAnswer) {
  Lock(2);
  fleet_.Obey("e1");
  const Term before = fleet_.DesiredTerm("e1");
  fleet_.Restart();
  for (const char* id : {"e1", "e2"}) fleet_.Rejoin(id, before);
  for (int i = 0; i < 6; ++i) fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Committed(), 1u);
  for (int i = 0; i < 6; ++i) Obey();
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Barrier, WhoIsKeptFromTheNewVersionServesNoOlderOneBehindIt) {
  policy_.max_staleness = 5;
  policy_.min_engines = {false, 1};
  fleet_.Policy(policy_);
  fleet_.Join("s1", 0, fleet::EngineKind::kSglang);
  for (int i = 0; i < 4; ++i) fleet_.Obey("s1");
  ASSERT_EQ(fleet_.Row("s1").mode, RowMode::kOpen);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("s1", second, fleet::Failure::kMisfit, "hidden size");
  for (int i = 0; i < 6; ++i) {
    Obey();
    fleet_.Report("s1");
    if (fleet_.Committed() == 2u) break;
    if (Phase() == SyncPhase::kHolding || Phase() == SyncPhase::kLocking) fleet_.Obey("s1");
  }
  ASSERT_EQ(fleet_.Committed(), 2u);
  EXPECT_EQ(fleet_.Row("s1").mode, RowMode::kClosed);
}

TEST_F(Barrier, NothingFromBeforeItIsServedBehindIt) {
  Decide(2);
  EXPECT_EQ(fleet_.Row("e1").serve_from, fleet_.Row("e1").epoch);
  policy_.mode = fleet::SyncMode::kRolling;
  fleet_.Policy(policy_);
  Decide(3);
  EXPECT_EQ(fleet_.Row("e1").serve_from.value + 1, fleet_.Row("e1").epoch.value)
      << "what was decided behind the barrier may be served until then";
}

TEST_F(Barrier, NorInTheMiddleOfTheNext) {
  Decide(2);
  const Epoch second = fleet_.Row("e1").epoch;
  Hold(3);
  EXPECT_EQ(fleet_.Row("e1").serve_from, second) << "whoever comes back may stand on less";
  Obey();
  ASSERT_EQ(fleet_.Row("e1").mode, RowMode::kLocked);
  EXPECT_EQ(fleet_.Row("e1").serve_from, second);
}

TEST_F(Barrier, IsOfItsSyncAndNotOfTodaysPolicy) {
  Lock(2);
  policy_.mode = fleet::SyncMode::kRolling;
  fleet_.Policy(policy_);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kLocked);
  Obey();
  EXPECT_EQ(fleet_.Committed(), 2u);
  EXPECT_EQ(fleet_.Row("e1").serve_from, fleet_.Row("e1").epoch);
}

TEST_F(Barrier, OneThatComesMeanwhileOpensOnNothingOld) {
  Lock(2);
  fleet_.Join("e3");
  EXPECT_EQ(fleet_.Row("e3").mode, RowMode::kLocked);
  Obey();
  EXPECT_EQ(fleet_.Committed(), 1u) << "its door is asked too";
  fleet_.Obey("e3");
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Barrier, AsksForEnginesAtRestAndGivesThemTheTime) {
  policy_.quiesce = fleet::PauseKind::kWait;
  policy_.flush = fleet::FlushMode::kAlways;
  policy_.drain_deadline_ms = 70'000;
  fleet_.Policy(policy_);
  const int64_t limit_ms = policy_.barrier_deadline_ms + 70'000;
  Hold(2);
  EXPECT_EQ(fleet_.Row("e1").quiesce,
            (fleet::DesiredPause{fleet::PauseKind::kWait, limit_ms, true}));
  EXPECT_EQ(fleet_.Row("e1").hold_for_ms, limit_ms);
  EXPECT_EQ(fleet_.Rules("e1").hold_limit_ms, limit_ms) << "clients wait as long";
  Obey();
  ASSERT_EQ(Phase(), SyncPhase::kLocking);
  fleet_.Obey("e2");
  fleet_.Of("e1").rows.at(0).waits_for = "ENGINE_TIMEOUT: slow; now waits for requests in flight";
  fleet_.Report("e1");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("lock: e1 (ENGINE_TIMEOUT: slow"));
  fleet_.Pass(limit_ms - 1);
  EXPECT_EQ(Phase(), SyncPhase::kLocking);
  fleet_.Pass(1);
  EXPECT_EQ(Why(), Abort::kBarrierDeadline);
}

TEST_F(Barrier, ADecisionIsFollowedWithTheEngineAtRestToo) {
  policy_.mode = fleet::SyncMode::kRolling;
  policy_.quiesce = fleet::PauseKind::kKeep;
  fleet_.Policy(policy_);
  Decide(2);
  EXPECT_EQ(fleet_.Row("e1").mode, RowMode::kOpen);
  EXPECT_EQ(fleet_.Row("e1").quiesce.kind, fleet::PauseKind::kKeep);
  EXPECT_EQ(fleet_.Row("e1").hold_for_ms, policy_.barrier_deadline_ms);
  policy_.quiesce = fleet::PauseKind::kNone;
  fleet_.Policy(policy_);
  EXPECT_EQ(fleet_.Row("e1").quiesce, fleet::DesiredPause());
  EXPECT_EQ(fleet_.Row("e1").hold_for_ms, 0);
}

TEST_F(Barrier, AnEngineWithoutSuchAPauseServesNothingAndHoldsNobodyUp) {
  policy_.quiesce = fleet::PauseKind::kKeep;
  fleet_.Policy(policy_);
  fleet_.Join("s1", 0, fleet::EngineKind::kSglang);
  fleet_.Step(WatchOpened{1, fleet_.Publish(2), kRollout});
  for (int i = 0; i < 8; ++i) {
    Obey();
    fleet_.Obey("s1");
  }
  EXPECT_EQ(fleet_.Committed(), 2u);
  EXPECT_TRUE(fleet_.told_.back().final);
  EXPECT_EQ(fleet_.told_.back().done, 2u);
  EXPECT_EQ(fleet_.Row("s1").mode, RowMode::kClosed);
  fleet_.Of("e1").health = fleet_.Of("e2").health = fleet::MemberHealth::kWedged;
  fleet_.Report("e1");
  fleet_.Report("e2");
  fleet_.Publish(3);
  EXPECT_EQ(fleet_.Pool().waits_for, "TOO_FEW_ENGINES");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("s1: QUIESCE_UNSUPPORTED"));
}

TEST_F(Barrier, EnginesWithoutSuchAPauseAreNoPartOfTheShareThatIsNeeded) {
  policy_.quiesce = fleet::PauseKind::kKeep;
  policy_.min_engines = {true, 100};
  fleet_.Policy(policy_);
  for (const char* id : {"s1", "s2", "s3"}) fleet_.Join(id, 0, fleet::EngineKind::kSglang);
  fleet_.Publish(2);
  for (int i = 0; i < 8; ++i) {
    Obey();
    for (const char* id : {"s1", "s2", "s3"}) fleet_.Obey(id);
  }
  EXPECT_EQ(fleet_.Committed(), 2u) << fleet_.Pool().waits_for << fleet_.Pool().detail;
}

}  // namespace
}  // namespace lorry::sync
