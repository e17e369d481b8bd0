// What operators say of a member, and which of its sessions and reports count.
#include <string>

#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

class MarkTest : public ::testing::Test {
 protected:
  MarkTest() { fleet_.Join("e1"); }
  Reply Mark(const std::string& id, MemberMark mark, const std::string& why = "") {
    fleet_.Step(MemberMarked{7, MemberId(id), mark, why});
    return fleet_.replies_.back();
  }
  MemberStanding Standing() const { return fleet_.StatusOf("e1").standing; }
  std::string Reason() const { return fleet_.StatusOf("e1").reason; }

  Fleet fleet_;
};

TEST_F(MarkTest, OneThatIsExcludedStaysSoUntilItIsIncludedInTheNextReignToo) {
  EXPECT_TRUE(Mark("e1", MemberMark::kExcluded, "driver update").status.ok());
  EXPECT_EQ(Standing(), MemberStanding::kExcluded);
  EXPECT_NE(Reason().find("driver update"), std::string::npos) << Reason();
  fleet_.Restart();
  fleet_.Rejoin("e1", Term());
  EXPECT_EQ(Standing(), MemberStanding::kExcluded);
  EXPECT_TRUE(Mark("e1", MemberMark::kIncluded).status.ok());
  EXPECT_EQ(Standing(), MemberStanding::kReady);
  EXPECT_EQ(Reason().find("driver update"), std::string::npos) << Reason();
}

TEST_F(MarkTest, OneThatIsDeadLosesItsSessionAndLivesAgainOnceItAttaches) {
  EXPECT_TRUE(Mark("e1", MemberMark::kDead).status.ok());
  ASSERT_FALSE(fleet_.ended_.empty());
  EXPECT_EQ(ReasonOf(fleet_.ended_.back().status), "MEMBER_DEAD");
  EXPECT_EQ(Standing(), MemberStanding::kDead);
  fleet_.Report("e1");
  EXPECT_EQ(Standing(), MemberStanding::kDead) << "nobody listens to that session any more";
  const size_t said = fleet_.said_.size();
  fleet_.Publish(1);
  EXPECT_EQ(fleet_.said_.size(), said);
  fleet_.Restart();
  EXPECT_EQ(Standing(), MemberStanding::kDead);
  fleet_.Rejoin("e1", Term());
  EXPECT_EQ(Standing(), MemberStanding::kReady);
  EXPECT_TRUE(fleet_.Wants("e1", 1));
}

// The operator takes it back: its door may be answering after all, and it is waited for again.
TEST_F(MarkTest, ThatItIsDeadIsTakenBackAsAnExclusionIs) {
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  Mark("e1", MemberMark::kDead);
  ASSERT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kDead);
  Mark("e1", MemberMark::kIncluded);
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kLost);
}

TEST_F(MarkTest, ThatItIsDeadMayBeSaidOfOneThatIsLost) {
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  EXPECT_TRUE(Mark("e1", MemberMark::kDead).status.ok());
  EXPECT_TRUE(fleet_.ended_.empty());
  EXPECT_EQ(Standing(), MemberStanding::kDead);
}

TEST_F(MarkTest, OneThatIsIncludedIsForgivenWhatItFailed) {
  fleet_.Join("e2");
  const VersionKey key = fleet_.Publish(1);
  fleet_.Set("e2", key, fleet::ResidencyState::kLoaded);
  fleet_.Fail("e1", key, fleet::Failure::kMember);
  ASSERT_EQ(Standing(), MemberStanding::kExcluded);
  Mark("e1", MemberMark::kIncluded);
  EXPECT_EQ(Standing(), MemberStanding::kReady);
}

TEST_F(MarkTest, NobodyThatWasNeverThereIsMarked) {
  EXPECT_EQ(ReasonOf(Mark("e9", MemberMark::kDead).status), "MEMBER_UNKNOWN");
}

TEST(Sessions, TheSameProxyReplacesItsOwnAndOnlyTheNewOneIsHeard) {
  Fleet fleet;
  fleet.Join("e1");
  const SessionId old = fleet.SessionOf(MemberId("e1"));
  fleet.Step(SessionOpened{99'999, MemberId("e1"), kRollout, fleet.Of("e1")});
  ASSERT_FALSE(fleet.ended_.empty());
  EXPECT_EQ(fleet.ended_.back().session, old);
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "SESSION_REPLACED");
  fleet.Step(SessionLost{old});
  EXPECT_EQ(fleet.StatusOf("e1").standing, MemberStanding::kReady);
  fleet.Of("e1").health = fleet::MemberHealth::kAsleep;
  fleet.Report("e1");  // by the old one
  EXPECT_EQ(fleet.StatusOf("e1").standing, MemberStanding::kReady);
}

TEST(Sessions, AReportThatWasOvertakenOrIsOfAnotherJournalIsNotHeard) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Report("e1");
  fleet::Observed late = fleet.Of("e1");
  late.health = fleet::MemberHealth::kAsleep;
  fleet.Step(MemberObserved{fleet.SessionOf(MemberId("e1")), late});
  EXPECT_EQ(fleet.StatusOf("e1").standing, MemberStanding::kReady) << "the same sequence";
  ++late.sequence;
  late.journal = JournalId("another");
  fleet.Step(MemberObserved{fleet.SessionOf(MemberId("e1")), late});
  EXPECT_EQ(fleet.StatusOf("e1").standing, MemberStanding::kReady);
  late.journal = fleet.Of("e1").journal;
  fleet.Step(MemberObserved{fleet.SessionOf(MemberId("e1")), late});
  EXPECT_NE(fleet.StatusOf("e1").standing, MemberStanding::kReady);
}

// --- leases

TEST(Leases, SayHowEnginesOfThePoolRenderTheVersion) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("v1", 0, fleet::EngineKind::kVllm, PoolName("eval"));
  fleet.Publish(1);
  for (int i = 0; i < 2; ++i) fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Join("e2");
  fleet.Of("e2").health = fleet::MemberHealth::kAsleep;
  fleet.Report("e2");
  const Resolved resolved = fleet.Lease(kLatest, 10'000);
  EXPECT_EQ(resolved.members, 1u) << "neither another pool's nor one that sleeps";
  EXPECT_EQ(resolved.renders.size(), 1u);
}

TEST(Leases, OfWhatIsNotThereAreRefused) {
  Fleet fleet;
  fleet.Join("e1");
  const auto why = [&](const Selector& selector, const PoolName& pool) {
    fleet.Step(LeaseAsked{1, selector, pool, "client", 10'000});
    return ReasonOf(fleet.replies_.back().status);
  };
  EXPECT_EQ(why(kLatest, kRollout), "UNKNOWN_VERSION");
  EXPECT_EQ(why(kLatest, PoolName("nowhere")), "UNKNOWN_POOL");
  EXPECT_EQ(fleet.replies_.back().status.message(),
            "the policy of math names no pool nowhere, only rollout");
  EXPECT_EQ(why(kLatest, PoolName("rolout")), "UNKNOWN_POOL");
  EXPECT_EQ(fleet.replies_.back().status.message(),
            "the policy of math names no pool rolout, only rollout; did you mean rollout?");
  EXPECT_EQ(why({AdapterName("mth"), Selector::Kind::kLatest, {}, {}, {}}, kRollout),
            "UNKNOWN_ADAPTER");
  EXPECT_EQ(fleet.replies_.back().status.message(), "there is no adapter mth; did you mean math?");
  EXPECT_EQ(why({kMath, Selector::Kind::kAlias, AliasName("best"), {}, {}}, kRollout),
            "UNKNOWN_VERSION");
  EXPECT_TRUE(fleet.Leases().empty());
}

TEST(Leases, AnAliasIsLeasedAsWhatItNames) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Publish(2);
  fleet.Alias("best", first);
  const Selector best{kMath, Selector::Kind::kAlias, AliasName("best"), {}, {}};
  EXPECT_EQ(fleet.Lease(best, 10'000).version.key, first);
}

}  // namespace
}  // namespace lorry::sync
