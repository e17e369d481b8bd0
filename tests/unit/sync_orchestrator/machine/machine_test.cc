// What the machine decides and tells: syncs, retention, the roster.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

TEST(Sync, AVersionIsCommittedOnceEveryMemberHasIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().phase, SyncPhase::kStaging);
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 0u);
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().committed->epoch, Epoch(1));
}

TEST(Sync, OneMemberOfAKindTriesTheVersionBeforeTheOthersLoadIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  EXPECT_TRUE(fleet.MayLoad("e1", 1));
  EXPECT_TRUE(fleet.Wants("e2", 1));
  EXPECT_FALSE(fleet.MayLoad("e2", 1));
  fleet.Obey("e1");
  EXPECT_TRUE(fleet.MayLoad("e2", 1));
}

TEST(Sync, ASlowCanaryGetsAnotherBesideIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Pass(15'000);
  EXPECT_TRUE(fleet.MayLoad("e2", 1));
}

TEST(Sync, AfterTheDeadlineHalfOfTheMembersAreEnough) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Pass(60'000);
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Sync, FewerThanNeededAbortAndTheVersionWaits) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Join("e3");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Pass(60'000);
  EXPECT_EQ(fleet.Committed(), 0u);
  EXPECT_FALSE(fleet.Pool().last_decision->commit);
  EXPECT_EQ(fleet.Pool().last_decision->why, Abort::kStageDeadline);
  EXPECT_EQ(fleet.Pool().pending.size(), 1u);
}

TEST(Sync, TheTryAfterADeadlineComesSoonHoweverManyThereWere) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Pass(600'000);  // the store answers nobody
  ASSERT_EQ(fleet.Committed(), 0u);
  for (int second = 0; second < 2; ++second) {
    fleet.Pass(1'000);
    fleet.Obey("e1");
  }
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Sync, NewestWinsAmongThoseThatWaitButNotOverTheRunningOne) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Publish(2);
  fleet.Publish(3);
  EXPECT_EQ(fleet.Pool().sync->version.key.number, VersionNumber(1));
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().sync->version.key.number, VersionNumber(3));
}

TEST(Sync, SkipNeverQueuesAFewAndRefusesTheRest) {
  Fleet fleet;
  fleet::AdapterPolicy policy;
  policy.skip = fleet::SkipMode::kNever;
  fleet.Policy(policy);
  VersionKey last;
  for (uint64_t number = 1; number <= 9; ++number) last = fleet.Publish(number);
  EXPECT_EQ(fleet.Pool().pending.size(), 8u);
  fleet.Step(WatchOpened{1, last, kRollout});
  EXPECT_EQ(fleet.told_.back().reason, "SYNC_BACKLOG");
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Sync, WhoWaitsForEnginesIsToldWhatIsWrongWithThem) {
  Fleet fleet;
  fleet.Join("e2");
  fleet.Of("e2").health = fleet::MemberHealth::kJoining;
  fleet.Of("e2").health_detail = "ENGINE_LORA_DISABLED";
  fleet.Report("e2");
  const VersionKey key = fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().waits_for, "TOO_FEW_ENGINES");
  EXPECT_EQ(fleet.Pool().detail,
            "0 engines are ready for it, 1 is needed; e2: JOINING, ENGINE_LORA_DISABLED");
  fleet.Join("e1");
  for (int i = 0; i < 3; ++i) fleet.Fail("e1", key, fleet::Failure::kRefused, "rank 64");
  EXPECT_EQ(fleet.Pool().waits_for, "REFUSED");
  EXPECT_EQ(fleet.Pool().detail, "engines refuse it: ENGINE_REFUSED: rank 64");
}

TEST(Sync, BehindAPinToAVersionThatIsGoneItIsSaidWhyOthersWait) {
  Fleet fleet;
  const VersionKey pinned = fleet.Publish(1);
  fleet.Override(pinned, "pin");
  fleet.Delete(pinned);
  fleet.Publish(2);
  ASSERT_EQ(fleet.Committed(), 0u);
  EXPECT_EQ(fleet.Pool().waits_for, "OVERRIDDEN");
  EXPECT_NE(fleet.Pool().detail.find("pins the pool to math r1.1"), std::string::npos);
}

TEST(Sync, AnotherBootIsTheMembersDeath) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Of("e2").boot = BootId("e2.2");
  fleet.Report("e2");
  EXPECT_EQ(fleet.Committed(), 1u);  // decided with the one that remains
}

TEST(Sync, ARestartGoesOnWithTheSameEpoch) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Restart();
  EXPECT_EQ(fleet.Pool().sync->epoch, Epoch(1));
  fleet.Join("e1");
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().committed->epoch, Epoch(1));
}

TEST(Sync, AfterARestartNothingBeginsWithWhoeverComesFirst) {
  Fleet fleet;
  for (const char* id : {"e1", "e2", "e3"}) fleet.Join(id);
  fleet.Restart();
  fleet.Publish(1);
  fleet.Join("e1");
  EXPECT_FALSE(fleet.Pool().sync.has_value());
  EXPECT_EQ(fleet.Pool().waits_for, "MEMBERS_ATTACHING");
  EXPECT_NE(fleet.Pool().detail.find("e3: JOINING"), std::string::npos) << fleet.Pool().detail;
  fleet.Join("e2");
  EXPECT_FALSE(fleet.Pool().sync.has_value());
  fleet.Pass(5'000);  // e3 is LOST
  ASSERT_TRUE(fleet.Pool().sync.has_value());
  EXPECT_EQ(fleet.Pool().sync->members.size(), 2u);
}

TEST(Sync, AReignWaitsForMembersThatComeAndGoNoLongerThanTwiceAsLong) {
  Fleet fleet;
  const auto come_and_go = [&](const std::string& id) {
    fleet.Join(id);
    fleet.Step(SessionLost{fleet.SessionOf(MemberId(id))});
  };
  for (const char* id : {"e1", "e2", "e3"}) fleet.Join(id);
  fleet.Restart();
  fleet.Publish(1);
  fleet.Join("e1");
  fleet.Pass(4'000);
  come_and_go("e2");
  fleet.Pass(4'900);  // e3 is LOST
  come_and_go("e3");
  fleet.Pass(1'099);
  EXPECT_EQ(fleet.Pool().waits_for, "MEMBERS_ATTACHING");
  fleet.Pass(1);
  EXPECT_TRUE(fleet.Pool().sync.has_value());
}

// Its name may be misspelt.
TEST(Sync, WhoWaitsForAPoolWithoutAnEngineIsToldSo) {
  Fleet fleet;
  fleet.Join("e1", 0, fleet::EngineKind::kVllm, PoolName("eval"));
  fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().waits_for, "TOO_FEW_ENGINES");
  EXPECT_EQ(fleet.Pool().detail,
            "0 engines are ready for it, 1 is needed; no engine is in the pool");
}

TEST(Sync, AShareCountsEnginesThatRestartAndNoNewcomers) {
  Fleet fleet;
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet.Join(id);
  fleet.Join("e5");
  for (const char* id : {"e2", "e3", "e4"}) {
    fleet.Of(id).boot = BootId();
    fleet.Of(id).health = fleet::MemberHealth::kJoining;
    fleet.Report(id);
  }
  fleet.Join("e6");
  fleet.Of("e6").health = fleet::MemberHealth::kAsleep;
  fleet.Report("e6");
  fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().waits_for, "TOO_FEW_ENGINES");
  EXPECT_EQ(fleet.Pool().detail.substr(0, 44), "2 engines are ready for it, 3 are needed; e2");
  for (const char* id : {"e2"}) {
    fleet.Of(id).boot = BootId("e2.2");
    fleet.Of(id).health = fleet::MemberHealth::kReady;
    fleet.Report(id);
  }
  ASSERT_TRUE(fleet.Pool().sync.has_value());
  EXPECT_EQ(fleet.Pool().sync->share_of, 5u);
}

// Right after a restart no member has a session yet: that is no reason to say that nobody serves.
TEST(Desired, OfABatchTheNewestDocumentIsSentAlone) {
  Machine machine = *Machine::Restore(Config(), {}, 0);
  AdapterInfo adapter{kMath, {}, RunId(1)};
  machine.Step(0, StoreListed{{adapter}, {}, {}});
  fleet::Observed observed;
  observed.journal = JournalId("j");
  machine.Step(0, SessionOpened{1, MemberId("e1"), kRollout, observed});
  machine.TakeReady();
  for (const uint32_t staleness : {5, 6, 7}) {
    adapter.policy.max_staleness = staleness;
    machine.Step(1, AdapterSet{adapter});
  }
  std::vector<uint32_t> told;
  for (const Effect& effect : machine.TakeReady().effects) {
    if (const auto* set = std::get_if<SetDesired>(&effect))
      told.push_back(set->Whole().rules.at(0).max_staleness);
  }
  EXPECT_EQ(told, std::vector<uint32_t>{7});
}

TEST(Desired, SaysHowTheVersionIsProbed) {
  for (const fleet::ProbeMode rule : {fleet::ProbeMode::kAuto, fleet::ProbeMode::kToken,
                                      fleet::ProbeMode::kPresence, fleet::ProbeMode::kDiffers}) {
    Fleet fleet;
    fleet.Policy({.probe = rule});
    fleet.Join("e1");
    fleet.Publish(1, {.rank_max = 8});
    EXPECT_EQ(fleet.Probe("e1", 1), rule);
  }
}

TEST(Status, TellsOfTheRunningSyncHowFarEachMemberIs) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey key = fleet.Publish(1);
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Pool().about, key);
  ASSERT_EQ(fleet.Pool().progress.size(), 2u);
  EXPECT_EQ(fleet.Pool().progress[0].state, fleet::ResidencyState::kLoaded);
}

TEST(Retention, TheWindowIsKeptAndTheRestLeaves) {
  Fleet fleet;
  fleet.Join("e1");
  for (uint64_t number = 1; number <= 3; ++number) {
    fleet.Publish(number);
    fleet.Obey("e1");
  }
  EXPECT_FALSE(fleet.Wants("e1", 1));
  EXPECT_TRUE(fleet.Wants("e1", 2));
  EXPECT_TRUE(fleet.Wants("e1", 3));
}

TEST(Retention, ALeaseKeepsAVersionUntilItExpires) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Lease({kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)}, 10'000);
  EXPECT_TRUE(fleet.replies_.back().status.ok());
  for (uint64_t number = 2; number <= 4; ++number) {
    fleet.Publish(number);
    fleet.Obey("e1");
  }
  EXPECT_TRUE(fleet.Wants("e1", 1));
  fleet.Pass(10'000);
  EXPECT_FALSE(fleet.Wants("e1", 1));
}

TEST(Retention, ARollbackRestartsTheLineage) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  fleet.Obey("e1");
  fleet.Step(OverrideSet{1, kMath, kRollout, first});
  EXPECT_EQ(fleet.replies_.back().epoch, Epoch(3));
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_FALSE(fleet.Wants("e1", 2));
  fleet.Publish(3);
  EXPECT_EQ(fleet.Committed(), 1u);  // waits until the override is lifted
  fleet.Step(OverrideSet{2, kMath, kRollout, std::nullopt});
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 3u);
}

TEST(Roster, AnotherJournalWhileTheFirstIsAttachedIsRefused) {
  Fleet fleet;
  fleet.Join("e1");
  fleet::Observed other = fleet.Of("e1");
  other.journal = JournalId("j-other");
  fleet.Step(SessionOpened{99'999, MemberId("e1"), kRollout, other});
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "ENGINE_CLAIMED");
}

TEST(Roster, AReignOverLostRecordsDesiresAndReleasesNothingBeforeItAdopts) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Obey("e1");  // it opens the row, and says so
  const Term lost{1, 1};
  fleet.records_.clear();
  fleet.config_.new_incarnation = 2;
  fleet.holds_.clear();
  fleet.Restart();
  fleet.Rejoin("e1", lost);
  fleet.Pass(60'000);
  EXPECT_TRUE(fleet.holds_.empty()) << "the store keeps what the lost reign named";
  EXPECT_EQ(fleet.DesiredTerm("e1"), lost);
  fleet.Step(FleetAdopted{1});
  EXPECT_TRUE(fleet.replies_.back().status.ok());
  EXPECT_EQ(fleet.Committed(), 1u);
  ASSERT_FALSE(fleet.holds_.empty());
  EXPECT_EQ(fleet.holds_.back().size(), 1u);
  EXPECT_EQ(fleet.DesiredTerm("e1"), (Term{3, 1}));
}

// The clock that counts incarnations may have been behind.
TEST(Roster, AdoptionMintsAnIncarnationAboveAnyThatMembersRemember) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Obey("e1");
  fleet.records_.clear();
  fleet.Restart();
  fleet.Rejoin("e1", Term{7, 3});
  fleet.Pass(60'000);
  fleet.Step(FleetAdopted{1});
  EXPECT_TRUE(fleet.replies_.back().status.ok()) << fleet.replies_.back().status;
  EXPECT_EQ(fleet.DesiredTerm("e1"), (Term{8, 1}));
  fleet.Restart();
  fleet.Rejoin("e1", Term{8, 1});
  EXPECT_EQ(fleet.DesiredTerm("e1"), (Term{8, 2})) << "the records remember it";
}

TEST(Roster, AProxyOfALaterReignIsRefused) {
  Fleet fleet;
  fleet.Publish(1);
  fleet.Pass(6'000);
  fleet::Observed later;
  later.journal = JournalId("j");
  const auto refused = [&](const Term& term) {
    later.term = term;
    fleet.Step(SessionOpened{99'999, MemberId("e9"), kRollout, later});
    EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "TERM_FENCED");
    return std::string(fleet.ended_.back().status.message());
  };
  EXPECT_THAT(refused(Term{1, 9}), testing::EndsWith("; attach to the current leader"));
  EXPECT_THAT(refused(Term{9, 1}),
              testing::AllOf(testing::HasSubstr("see Restore"),
                             testing::HasSubstr("of another fleet (then remove the proxy's data")));
}

}  // namespace
}  // namespace lorry::sync
