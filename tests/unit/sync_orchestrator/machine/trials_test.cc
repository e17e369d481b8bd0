// Who may load a version that nobody of its group has loaded yet, and what counts against it.
#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::Failure;
using fleet::ResidencyState;

// A pool of four that serves v1.
class Trials : public ::testing::Test {
 protected:
  Trials() {
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Join(id);
    first_ = fleet_.Publish(1);
    for (int round = 0; round < 2; ++round) {
      for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Obey(id);
    }
    EXPECT_EQ(fleet_.Committed(), 1u);
  }
  // A version that an alias alone asks for: no sync stages it.
  VersionKey PublishForAnAlias(uint64_t number) {
    fleet_.Override(first_, "");
    const VersionKey key = fleet_.Publish(number);
    fleet_.Alias("eval", key);
    return key;
  }
  // It has fetched it, and says that its engine is full of what must stay.
  void HasNoSlot(const char* id, const VersionKey& key) {
    fleet_.Set(id, key, ResidencyState::kFetched);
    for (fleet::ObservedResidency& residency : fleet_.Of(id).residencies) {
      if (residency.key != key) continue;
      residency.no_slot = true;
      residency.reason = "NO_SLOT";
    }
    fleet_.Report(id);
  }
  // Everybody says again where it stands, and time passes.
  void Rest() {
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Report(id);
    fleet_.Pass(15'000);
  }
  // "FETCHED NO_SLOT: ...", as status has it.
  std::string Says(const char* id, const VersionKey& key) {
    for (const fleet::ObservedResidency& its : fleet_.StatusOf(id).observed.residencies) {
      if (its.key != key) continue;
      std::string said(fleet::ToString(its.state));
      if (!its.reason.empty()) said += " " + its.reason;
      return its.detail.empty() ? said : said + ": " + its.detail;
    }
    return "nothing";
  }

  Fleet fleet_;
  VersionKey first_;
};

TEST_F(Trials, NoMoreEnginesAreAtRiskThanAVersionMayCost) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Set("e1", killer, ResidencyState::kLoading);
  fleet_.Pass(15'000);
  EXPECT_EQ(fleet_.Loaders(2), 2u) << "a slow one gets another beside it";
  fleet_.Set("e2", killer, ResidencyState::kLoading);
  fleet_.Pass(15'000);
  EXPECT_EQ(fleet_.Loaders(2), 2u) << "and no third";
}

TEST_F(Trials, ASlowOneThatHasNotBegunOnItsEngineGivesWay) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Set("e1", second, ResidencyState::kFetching);
  fleet_.Pass(15'000);
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

TEST_F(Trials, AnEngineWithoutASlotGivesWayToOneThatHasOne) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e2", "e3", "e1"}) HasNoSlot(id, second);
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.MayLoad("e4", 2)) << "it has said nothing of the kind";
  fleet_.Set("e4", second, ResidencyState::kFetched);
  EXPECT_EQ(Says("e1", second), "FETCHED NO_SLOT");
}

TEST_F(Trials, WhoGaveWayForWantOfASlotIsAskedAgainOnceItHasOne) {
  const VersionKey second = PublishForAnAlias(2);
  HasNoSlot("e1", second);
  fleet_.Report("e1");
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Set("e1", second, ResidencyState::kFetched);
  for (const char* id : {"e4", "e3", "e2"}) HasNoSlot(id, second);
  EXPECT_TRUE(fleet_.MayLoad("e1", 2));
}

TEST_F(Trials, ASlotThatCameFreeWhileNobodyWasLookedForIsFound) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e2", "e3", "e4", "e1"}) HasNoSlot(id, second);
  fleet_.Set("e1", second, ResidencyState::kFetched);
  fleet_.Set("e3", second, ResidencyState::kFetched);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  HasNoSlot("e1", second);
  EXPECT_TRUE(fleet_.MayLoad("e3", 2));
}

TEST_F(Trials, LeaveRestsWhereNobodyHasASlot) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2", "e3", "e4"}) HasNoSlot(id, second);
  Rest();
  const size_t said = fleet_.said_.size();
  const Records records = fleet_.records_;
  for (int i = 0; i < 10; ++i) Rest();
  EXPECT_EQ(fleet_.said_.size(), said);
  EXPECT_TRUE(fleet_.records_ == records);
  EXPECT_EQ(fleet_.Loaders(2), 1u);
  fleet_.Set("e3", second, ResidencyState::kFetched);
  Rest();
  EXPECT_TRUE(fleet_.MayLoad("e3", 2)) << "a slot is free there now";
  EXPECT_EQ(fleet_.Loaders(2), 1u);
}

TEST_F(Trials, LeaveRestsWhereEveryoneIsSlowUntilSomebodyComesOn) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Set(id, second, ResidencyState::kFetching);
  for (int i = 0; i < 5; ++i) Rest();
  EXPECT_TRUE(fleet_.MayLoad("e4", 2)) << "each had its turn";
  const size_t said = fleet_.said_.size();
  for (int i = 0; i < 10; ++i) Rest();
  EXPECT_EQ(fleet_.said_.size(), said);
  fleet_.Set("e2", second, ResidencyState::kFetched);
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

TEST_F(Trials, WhoWasSlowTriesAgainOnceWhoTriedInsteadHasFailed) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Set(id, second, ResidencyState::kFetching);
  for (int i = 0; i < 5; ++i) Rest();
  ASSERT_TRUE(fleet_.MayLoad("e4", 2));
  fleet_.Fail("e4", second, Failure::kMember);
  Rest();
  EXPECT_TRUE(fleet_.MayLoad("e1", 2));
}

TEST_F(Trials, StatusSaysWhoTriesWhatOthersMustWaitFor) {
  const VersionKey second = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2"}) fleet_.Set(id, second, ResidencyState::kFetched);
  EXPECT_EQ(Says("e1", second), "FETCHED");
  EXPECT_EQ(Says("e2", second), "FETCHED TRIED_ELSEWHERE: e1 tries it first");
  HasNoSlot("e2", second);
  EXPECT_EQ(Says("e2", second), "FETCHED NO_SLOT");
  fleet_.Set("e2", second, ResidencyState::kFetched);
  fleet_.Step(MemberMarked{1, MemberId("e2"), MemberMark::kExcluded, ""});
  EXPECT_EQ(Says("e2", second), "FETCHED") << "its standing says why";
}

// It came back, and still holds the document that let it load what killed it: that leave is void
// there, and nobody else gets one while that is not sure.
TEST_F(Trials, LeaveToLoadHoldsForTheDeathsThatWereKnown) {
  const VersionKey killer = fleet_.Publish(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  EXPECT_EQ(fleet_.DeathsAllowed("e1", 2), 0u);
  fleet_.Die("e1", killer);
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
  EXPECT_EQ(fleet_.DeathsAllowed("e2", 2), 0u);
  EXPECT_EQ(fleet_.DeathsAllowed("e3", 1), 1u) << "what is proven is loaded again by itself";
  fleet_.Die("e2", killer);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  fleet_.Lift(killer);
  fleet_.Pass(1'000);
  EXPECT_TRUE(fleet_.MayLoad("e1", 2));
  EXPECT_EQ(fleet_.DeathsAllowed("e1", 2), 1u) << "the verdict was lifted, knowing of it";
}

TEST_F(Trials, WhoFailedCountsUntilItHasHeardThatAnotherTries) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Fail("e1", killer, Failure::kEngineHung);
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  fleet_.Pass(10);
  EXPECT_EQ(fleet_.Loaders(2), 0u) << "e1 may yet try again, and one life is spent";
  fleet_.Report("e1");
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

// Its unload hangs, too, so that it loads it for as long as it lives.
TEST_F(Trials, AnEngineThatHangsIsOneLifeHoweverLongItLoads) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Fail("e1", killer, Failure::kEngineHung);
  fleet_.Of("e1").health = fleet::MemberHealth::kWedged;
  fleet_.Set("e1", killer, ResidencyState::kLoading);
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Set("e2", killer, ResidencyState::kLoading);
  fleet_.Pass(15'000);
  EXPECT_EQ(fleet_.Loaders(2), 1u) << "a third would be one too many";
}

TEST_F(Trials, SoItIsWhenItsTryIsOver) {
  const VersionKey killer = fleet_.Publish(2);
  for (const char* id : {"e2", "e3", "e4"}) {
    fleet_.Of(id).health = fleet::MemberHealth::kAsleep;
    fleet_.Report(id);
  }
  fleet_.Fail("e1", killer, Failure::kEngineHung);
  fleet_.Override(first_, "");
  fleet_.Report("e1");
  fleet_.Set("e1", killer, ResidencyState::kLoading);
  fleet_.Of("e2").health = fleet::MemberHealth::kReady;
  fleet_.Report("e2");
  fleet_.Alias("eval", killer);
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

TEST_F(Trials, StatusNamesWhoLoadsItWhereNobodyMayTry) {
  const VersionKey killer = PublishForAnAlias(2);
  fleet_.Set("e3", killer, ResidencyState::kLoading);
  fleet_.Die("e1", killer);
  fleet_.Set("e4", killer, ResidencyState::kFetched);
  EXPECT_EQ(fleet_.Loaders(2), 0u);
  EXPECT_EQ(Says("e4", killer), "FETCHED TRIED_ELSEWHERE: e3 tries it first");
}

TEST_F(Trials, WhoIsLostInItsTryCountsAsOneThatHangsUntilItIsBack) {
  const VersionKey killer = PublishForAnAlias(2);
  fleet_.Die("e1", killer);
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Report("e2");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.Pass(1'000);
  EXPECT_FALSE(fleet_.MayLoad("e3", 2)) << "e2 may have tried already";
  EXPECT_TRUE(fleet_.Verdicts().empty());
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_EQ(fleet_.Loaders(2), 1u) << "nobody but e2, which has not heard";
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kStalls);
  fleet_.Attach("e2");
  EXPECT_TRUE(fleet_.Verdicts().empty()) << "its engine lives";
  fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Loaders(2), 4u);
}

// Nobody is left who could tell what its engine died of.
TEST_F(Trials, APodThatIsEvictedInItsTryIsADeath) {
  const VersionKey killer = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2"}) {
    ASSERT_TRUE(fleet_.MayLoad(id, 2)) << id;
    fleet_.Report(id);
    fleet_.Evict(id);
    fleet_.Attach(id);
    fleet_.Report(id);
  }
  EXPECT_EQ(fleet_.Loaders(2), 0u);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

TEST_F(Trials, APodThatIsEvictedAndDoesNotComeBackIsALifeToo) {
  const VersionKey killer = fleet_.Publish(2);
  for (const char* id : {"e1", "e2"}) {
    ASSERT_TRUE(fleet_.MayLoad(id, 2)) << id;
    fleet_.Evict(id);
    fleet_.Pass(fleet_.config_.lost_after_ms);
  }
  EXPECT_FALSE(fleet_.MayLoad("e3", 2));
  EXPECT_FALSE(fleet_.MayLoad("e4", 2));
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kStalls);
  fleet_.Attach("e1");
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kStalls) << "its engine is another one";
}

// A reign that waits for the others asks for nothing yet, and later nobody is left to say it again.
TEST_F(Trials, WhoHasLoadedItSaysSoToAReignThatWaitsForTheOthers) {
  const VersionKey key = fleet_.Publish(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  const Term before = fleet_.DesiredTerm("e1");
  fleet_.Restart();
  fleet_.Of("e1").residencies = {
      {.name = fleet_.NameOf(key), .key = key, .state = ResidencyState::kLoaded}};
  fleet_.Rejoin("e1", before);
  fleet_.Evict("e1");
  for (const char* id : {"e2", "e3", "e4"}) fleet_.Rejoin(id, before);
  fleet_.Attach("e1");
  EXPECT_EQ(fleet_.Loaders(2), 3u) << "it is proven: all that the sync stages it on";
}

// It loads nothing before its engine is restarted, and leave is for one boot.
TEST_F(Trials, WhoseEngineHangsHasTriedNothing) {
  (void)PublishForAnAlias(2);
  for (const char* id : {"e1", "e2"}) {
    ASSERT_TRUE(fleet_.MayLoad(id, 2)) << id;
    fleet_.Of(id).health = fleet::MemberHealth::kWedged;
    fleet_.Report(id);
    fleet_.Evict(id);
    fleet_.Attach(id);
  }
  EXPECT_TRUE(fleet_.Verdicts().empty());
  EXPECT_EQ(fleet_.Loaders(2), 1u);
}

TEST_F(Trials, WhoseLoadHangsWithItsEngineHas) {
  const VersionKey killer = PublishForAnAlias(2);
  for (const char* id : {"e1", "e2"}) {
    ASSERT_TRUE(fleet_.MayLoad(id, 2)) << id;
    fleet_.Of(id).health = fleet::MemberHealth::kWedged;
    fleet_.Set(id, killer, ResidencyState::kLoading);
    fleet_.Evict(id);
    fleet_.Attach(id);
  }
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

// It may have begun to load before it lost its journal, and hangs since.
TEST_F(Trials, WhoseEngineHangsWithoutItsJournalMayHaveTried) {
  (void)PublishForAnAlias(2);
  for (const char* id : {"e1", "e2"}) {
    ASSERT_TRUE(fleet_.MayLoad(id, 2)) << id;
    const BootId boot = fleet_.Of(id).boot;
    fleet_.Evict(id);
    fleet_.Of(id).boot = boot;
    fleet_.Of(id).health = fleet::MemberHealth::kWedged;
    fleet_.Attach(id);
    fleet_.Boot(id);
  }
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

// Whoever tells the deaths of a boot has told them all: what ended it otherwise is nobody's.
TEST_F(Trials, AnotherBootWithTheSameJournalIsNoDeath) {
  PublishForAnAlias(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  fleet_.Boot("e1");
  fleet_.Report("e1");
  fleet_.Boot("e1");
  EXPECT_TRUE(fleet_.Verdicts().empty());
  EXPECT_EQ(fleet_.Loaders(2), 1u);
  for (const char* id : {"e1", "e2", "e3", "e4"}) {
    if (fleet_.MayLoad(id, 2)) fleet_.Obey(id);
  }
  EXPECT_EQ(fleet_.Loaders(2), 4u);
}

TEST_F(Trials, LeaveToTryHoldsForTheBootThatItWasGivenTo) {
  (void)fleet_.Publish(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.WantedOn("e1", 2)->on_this_boot);
  fleet_.Obey("e1");
  EXPECT_FALSE(fleet_.WantedOn("e2", 2)->on_this_boot) << "it is proven";
}

TEST_F(Trials, ATryIsOneRecordAndGoneAtItsEnd) {
  const VersionKey second = fleet_.Publish(2);
  const auto leave = [&] {
    const auto record = fleet_.records_.find(VerdictKey(second).text);
    return record == fleet_.records_.end()
               ? 0
               : std::get<VerdictRecord>(record->second).groups.begin()->second.leave.size();
  };
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  EXPECT_EQ(leave(), 1u);
  fleet_.Fail("e1", second, Failure::kMember);
  fleet_.Report("e1");
  fleet_.Report("e2");
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  EXPECT_EQ(leave(), 1u) << "of e2";
  fleet_.Obey("e2");
  EXPECT_EQ(leave(), 0u);
}

TEST_F(Trials, AnEngineThatIsBackBeforeItWasMissedHasLostItsLeave) {
  const VersionKey killer = fleet_.Publish(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  fleet::Observed& observed = fleet_.Of("e1");
  observed.killers = {{fleet_.NameOf(killer), 1}};
  fleet_.Boot("e1");
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

TEST_F(Trials, WhomAnEarlierLeaderLetTryGoesOn) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Die("e1", killer);
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  const Term before = fleet_.DesiredTerm("e2");
  fleet_.Restart();
  for (const char* id : {"e1", "e3", "e4"}) fleet_.Rejoin(id, before);
  for (const char* id : {"e1", "e3", "e4"}) fleet_.Report(id);
  EXPECT_EQ(fleet_.Loaders(2), 1u) << "e2 may be about to load it";
  fleet_.Rejoin("e2", before);
  fleet_.Report("e2");
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
  EXPECT_EQ(fleet_.Loaders(2), 1u);
}

TEST_F(Trials, WhoWasToldToTryCountsThoughNobodyWantedItMeanwhile) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Die("e1", killer);
  fleet_.Of("e2").health = fleet::MemberHealth::kJoining;
  fleet_.Report("e2");
  fleet_.Report("e2");
  ASSERT_TRUE(fleet_.MayLoad("e3", 2));
  fleet_.Override(first_, "");
  EXPECT_FALSE(fleet_.Wants("e3", 2)) << "which it may not have heard";
  fleet_.Of("e2").health = fleet::MemberHealth::kReady;
  fleet_.Report("e2");
  fleet_.Alias("eval", killer);
  EXPECT_EQ(fleet_.Loaders(2), 0u) << "one life is spent, and e3 may be about to load it";
  fleet_.Report("e3");
  EXPECT_EQ(fleet_.Loaders(2), 1u);
}

// Its own failure is of one version: of others it is asked, though last.
TEST_F(Trials, WhoIsExcludedForOneVersionTriesAnotherWhereNobodyElseCan) {
  const VersionKey second = PublishForAnAlias(2);
  fleet_.Fail("e1", second, Failure::kMember);
  fleet_.Report("e1");
  fleet_.Report("e2");
  fleet_.Obey("e2");
  ASSERT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kExcluded);
  fleet_.Alias("next", fleet_.Publish(3));
  EXPECT_FALSE(fleet_.MayLoad("e1", 3));
  EXPECT_TRUE(fleet_.MayLoad("e2", 3));
  for (const char* id : {"e2", "e3", "e4"}) {
    fleet_.Of(id).health = fleet::MemberHealth::kAsleep;
    fleet_.Report(id);
    fleet_.Report(id);
  }
  EXPECT_TRUE(fleet_.MayLoad("e1", 3));
}

TEST_F(Trials, WhomAnOperatorExcludedTriesNothing) {
  fleet_.Override(first_, "");
  for (const char* id : {"e1", "e2", "e3", "e4"})
    fleet_.Step(MemberMarked{0, MemberId(id), MemberMark::kExcluded, "repair"});
  fleet_.Alias("next", fleet_.Publish(2));
  EXPECT_EQ(fleet_.Loaders(2), 0u);
}

// A proxy without its journal cannot tell what the engine died of, and there is none to ask.
TEST_F(Trials, WhoCameBackWithoutItsJournalCountsUntilItsEngineIsThere) {
  const VersionKey killer = PublishForAnAlias(2);
  fleet_.Die("e1", killer);
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Report("e2");
  fleet_.Evict("e2");
  const BootId boot = std::exchange(fleet_.Of("e2").boot, BootId());
  fleet_.Attach("e2");
  for (int second = 0; second < 8; ++second) {
    fleet_.Report("e2");
    fleet_.Pass(1'000);
    EXPECT_EQ(fleet_.Loaders(2), 0u) << second;
  }
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kStalls) << "as if it were LOST";
  fleet_.Of("e2").boot = boot;
  fleet_.Report("e2");
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

}  // namespace
}  // namespace lorry::sync
