// Whose failure it is, what is known of a version, and who may load it.
#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "services/sync_orchestrator/machine/state.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::Failure;
using fleet::ResidencyState;

constexpr fleet::EngineKind kSglang = fleet::EngineKind::kSglang;

// A pool of four that serves v1, and v2 that is stored and waits for nobody.
class Pool : public ::testing::Test {
 protected:
  Pool() {
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Join(id);
    first_ = fleet_.Publish(1);
    ObeyAll();
    ObeyAll();
    EXPECT_EQ(fleet_.Committed(), 1u);
  }
  void ObeyAll() {
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Obey(id);
  }
  WatchEvent Watch(const VersionKey& key) {
    fleet_.Step(WatchOpened{++watches_, key, kRollout});
    return fleet_.told_.back();
  }

  Fleet fleet_;
  VersionKey first_;
  WatchId watches_ = 0;
};

TEST_F(Pool, WhateverMakesAVersionWantedOneMemberTriesItFirst) {
  fleet_.Override(first_, "");  // nothing newer is synced
  const VersionKey second = fleet_.Publish(2);
  fleet_.Alias("eval", second);
  EXPECT_EQ(fleet_.Loaders(2), 1u);
  const VersionKey third = fleet_.Publish(3);
  fleet_.Step(LeaseAsked{1, {kMath, Selector::Kind::kNewest, {}, {}, {}}, kRollout, "c", 60'000});
  EXPECT_EQ(fleet_.Loaders(3), 1u);
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Loaders(2), 4u);
  EXPECT_EQ(fleet_.Loaders(3), 4u);
}

TEST_F(Pool, NewcomersOfAnotherKindTryADecidedVersionOneByOne) {
  fleet_.Join("s1", 0, kSglang);
  fleet_.Join("s2", 0, kSglang);
  EXPECT_EQ(fleet_.Loaders(1), 5u);
  fleet_.Set("s1", first_, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.Loaders(1), 6u);
}

TEST_F(Pool, AKillerCostsTwoEnginesWhateverAsksForIt) {
  fleet_.Override(first_, "");
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Alias("eval", killer);
  size_t deaths = 0;
  for (int round = 0; round < 8; ++round) {
    for (const char* id : {"e1", "e2", "e3", "e4"}) {
      if (!fleet_.MayLoad(id, 2)) continue;
      fleet_.Die(id, killer);
      fleet_.Obey("e4");  // what it has is of no matter
      ++deaths;
      break;
    }
  }
  EXPECT_EQ(deaths, 2u);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
  EXPECT_FALSE(fleet_.Wants("e3", 2)) << "it is not even fetched";
}

// A proxy that was restarted together with its engine tells of the death before it has seen an engine.
TEST_F(Pool, ADeathIsOfTheGroupThatTheEngineWasOf) {
  const VersionKey killer = fleet_.Publish(2);
  fleet::Observed& observed = fleet_.Of("e1");
  const fleet::EngineLimits limits = std::exchange(observed.limits, fleet::EngineLimits());
  fleet_.Report("e1");
  observed.limits = limits;
  fleet_.Die("e1", killer);
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Die("e2", killer);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

// Two of one kind refuse it, one of the other kind fails it by itself: too few are left, now and after
// that one's exclusion, and what comes next is not kept waiting by trying it again and again.
TEST_F(Pool, WhoFailsAVersionIsNotAbleToServeItAfterItsExclusionEither) {
  fleet::AdapterPolicy policy = fleet_.adapter_.policy;
  policy.skip = fleet::SkipMode::kNever;
  policy.min_engines = {false, 2};
  fleet_.Policy(policy);
  fleet_.Join("s1", 0, kSglang);
  fleet_.Join("s2", 0, kSglang);
  for (const char* id : {"s1", "s2"}) fleet_.Set(id, first_, ResidencyState::kLoaded);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Set("s1", second, ResidencyState::kLoaded);
  fleet_.Fail("s2", second, Failure::kMember, "disk full");
  for (const char* id : {"e1", "e2"}) fleet_.Fail(id, second, Failure::kRefused, "rank");
  const VersionKey third = fleet_.Publish(3);
  EXPECT_EQ(fleet_.Pool().sync->version.key, third) << "at once";
  fleet_.Pass(600'000);  // nobody has loaded it, and the exclusion is over
  fleet_.Pass(1'000);
  for (const char* id : {"e1", "s1"}) {
    EXPECT_FALSE(fleet_.Wants(id, 2)) << id;
    EXPECT_TRUE(fleet_.Wants(id, 3)) << id;
  }
  EXPECT_EQ(fleet_.Pool().sync->version.key, third);
}

// It would be told to stop as soon as it has answered, and to try once it has answered that.
TEST_F(Pool, WhoeverHasFailedDoesNotTryBesideOneThatIsSlow) {
  for (const char* id : {"e3", "e4"})
    fleet_.Step(MemberMarked{1, MemberId(id), MemberMark::kExcluded, "driver update"});
  const VersionKey second = fleet_.Publish(2);
  fleet_.Set("e1", second, ResidencyState::kLoading);
  fleet_.Pass(15'000);
  ASSERT_TRUE(fleet_.MayLoad("e2", 2)) << "e1 is slow";
  fleet_.Fail("e2", second, Failure::kMember);
  fleet_.Report("e2");
  const size_t said = fleet_.said_.size();
  fleet_.Report("e2");
  fleet_.Report("e2");
  EXPECT_EQ(fleet_.said_.size(), said);
  EXPECT_FALSE(fleet_.MayLoad("e2", 2));
}

TEST_F(Pool, AVerdictLastsAsLongAsItsVersion) {
  const VersionKey second = fleet_.Publish(2);
  ObeyAll();
  ASSERT_EQ(fleet_.Committed(), 2u);
  fleet_.Die("e1", second);
  const VersionKey third = fleet_.Publish(3);
  EXPECT_TRUE(fleet_.records_.contains(VerdictKey(second).text));
  fleet_.Delete(second);
  EXPECT_TRUE(fleet_.records_.contains(VerdictKey(second).text)) << "rows stand on it still";
  ObeyAll();
  ObeyAll();
  ASSERT_EQ(fleet_.Committed(), 3u);
  for (uint64_t number = 4; number < 4 + kHistoryLimit; ++number) {
    fleet_.Publish(number);
    ObeyAll();
    ObeyAll();
  }
  EXPECT_FALSE(fleet_.records_.contains(VerdictKey(second).text));
  EXPECT_TRUE(fleet_.records_.contains(VerdictKey(third).text));
  fleet_.versions_.clear();  // deleted while nobody leads
  fleet_.Restart();
  EXPECT_FALSE(fleet_.records_.contains(VerdictKey(third).text));
}

TEST_F(Pool, TwoThatHangEndTheTrial) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kEngineHung);
  EXPECT_TRUE(fleet_.Verdicts().empty());
  fleet_.Fail("e2", second, Failure::kEngineHung);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kStalls);
  EXPECT_EQ(fleet_.Pool().last_decision->why, Abort::kStalls);
}

TEST_F(Pool, TwoThatRefuseSpeakForTheirKind) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kRefused, "no module qproj");
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady) << "nobody's failure yet";
  fleet_.Fail("e2", second, Failure::kRefused, "no module qproj");
  EXPECT_EQ(fleet_.Pool().last_decision->why, Abort::kRefused);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady);
  const WatchEvent end = Watch(second);
  EXPECT_TRUE(end.final);
  EXPECT_EQ(end.reason, "REFUSED");
  EXPECT_NE(end.detail.find("no module qproj"), std::string::npos) << end.detail;
  EXPECT_FALSE(fleet_.Holds(second)) << "it may be deleted";
  EXPECT_EQ(fleet_.Loaders(2), 0u);
}

TEST_F(Pool, WhoeverFailsWhatOthersLoadIsExcludedForIt) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kMember, "disk full");
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady);
  fleet_.Set("e2", second, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kExcluded);
  EXPECT_EQ(fleet_.StatusOf("e1").reason, "FAILED: disk full");
  fleet_.Obey("e3");
  fleet_.Obey("e4");
  EXPECT_EQ(fleet_.Committed(), 2u) << "without it";
}

// Its backoff ends by its own success alone.
TEST_F(Pool, AnExclusionGrowsUntilTheMemberLoadsWhatItFailed) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Set("e2", second, ResidencyState::kLoaded);
  fleet_.Fail("e1", second, Failure::kMember);
  fleet_.Obey("e3");
  fleet_.Obey("e4");
  ASSERT_EQ(fleet_.Committed(), 2u);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady);
  const VersionKey third = fleet_.Publish(3);  // which it loads
  fleet_.Set("e1", third, ResidencyState::kLoaded);
  for (const char* id : {"e2", "e3", "e4"}) fleet_.Set(id, third, ResidencyState::kLoaded);
  ASSERT_EQ(fleet_.Committed(), 3u);
  fleet_.Fail("e1", second, Failure::kMember);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kExcluded) << "two seconds";
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady);
}

TEST_F(Pool, WhatWaitsForAnExcludedMemberBeginsAsSoonAsThatLoadsWhatItFailed) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kMember);
  for (const char* id : {"e2", "e3", "e4"}) fleet_.Obey(id);
  ASSERT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kExcluded);
  // Of another adapter, which no engine has failed.
  AdapterInfo code{AdapterName("code"), {}, RunId(1)};
  code.policy.min_engines = {.is_share = false, .value = 4};
  fleet_.Step(AdapterSet{code});
  fleet_.Step(VersionStored{{{code.adapter, RunId(1), VersionNumber(1)}, Digest{"c1"}, {}}});
  const auto pool_of_code = [&] { return fleet_.Status().pools.at(0); };
  ASSERT_EQ(pool_of_code().waits_for, "TOO_FEW_ENGINES");
  fleet_.Set("e1", second, ResidencyState::kLoaded);
  EXPECT_EQ(pool_of_code().phase, SyncPhase::kStaging);
}

TEST_F(Pool, WithSkipNeverWhatIsGivenUpDoesNotStandInTheWay) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  const VersionKey second = fleet_.Publish(2);
  const VersionKey third = fleet_.Publish(3);
  fleet_.Fail("e1", second, Failure::kMisfit, "hidden size 96");
  EXPECT_EQ(Watch(second).reason, "REFUSED");
  fleet_.Pass(1'000);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->version.key, third);
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Set(id, third, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.Committed(), 3u);
  EXPECT_TRUE(fleet_.Pool().pending.empty()) << "it is older than what was decided";
}

TEST_F(Pool, WithSkipNeverWhatIsGivenUpFillsNoQueue) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  const uint64_t last = 2 + fleet_.config_.backlog_limit;
  for (uint64_t number = 2; number < last; ++number) {
    const VersionKey key = fleet_.Publish(number);
    fleet_.Fail("e1", key, Failure::kMisfit, "hidden size 96");
    fleet_.Pass(1'000);
  }
  ASSERT_EQ(fleet_.Pool().pending.size(), fleet_.config_.backlog_limit);
  const VersionKey good = fleet_.Publish(last);
  ASSERT_TRUE(fleet_.Pool().sync.has_value()) << fleet_.Pool().waits_for;
  EXPECT_EQ(fleet_.Pool().sync->version.key, good);
}

TEST_F(Pool, AnEngineOfAnotherBaseModelSpeaksForItselfAlone) {
  fleet_.Of("e1").base_model = peft::BaseModel{"llama", 96, 2};
  fleet_.Boot("e1");
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kMisfit, "hidden size 128");
  for (const char* id : {"e2", "e3", "e4"}) fleet_.Set(id, second, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Pool, AMisfitIsOneWithOtherLimitsTooThoughItIsToldOnce) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kMisfit, "hidden size 128");
  ASSERT_EQ(Watch(second).reason, "REFUSED");
  for (const char* id : {"e1", "e2", "e3", "e4"}) {
    fleet_.Set(id, second, ResidencyState::kFailed, Failure::kMisfit, "hidden size 128");
    fleet_.Of(id).limits.rank_limit = 64;
    fleet_.Of(id).boot = BootId(std::string(id) + ".restarted");
    fleet_.Report(id);
  }
  fleet_.Pass(1'000);
  EXPECT_FALSE(fleet_.Pool().sync.has_value()) << "it is not staged where it is known not to fit";
  EXPECT_EQ(Watch(second).reason, "REFUSED");
  fleet_.Lift(second);
  fleet_.Pass(60'000);
  EXPECT_EQ(Watch(second).reason, "REFUSED") << "nor once an operator lifts the verdict";
}

TEST_F(Pool, AMisfitThatAnExcludedMemberToldCountsOnceItIsIncluded) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Step(MemberMarked{1, MemberId("e1"), MemberMark::kExcluded, "test"});
  fleet_.Fail("e1", second, Failure::kMisfit, "hidden size 128");
  EXPECT_NE(Watch(second).reason, "REFUSED")
      << "what an operator set aside says counts for nothing";
  fleet_.Step(MemberMarked{2, MemberId("e1"), MemberMark::kIncluded, ""});
  EXPECT_EQ(Watch(second).reason, "REFUSED") << "it tells it once, and does not repeat it";
}

TEST_F(Pool, AVerdictAfterTheDecisionClosesNothingAndLaggardsServeWhatIsProven) {
  const VersionKey second = fleet_.Publish(2);
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Set(id, second, ResidencyState::kLoaded);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 2u);
  fleet_.Die("e4", second);
  fleet_.Die("e4", second);
  EXPECT_EQ(fleet_.Row("e1").epoch, Epoch(2));
  EXPECT_TRUE(fleet_.Wants("e1", 2));
  EXPECT_EQ(fleet_.Row("e4").mode, fleet::RowMode::kOpen);
  EXPECT_EQ(fleet_.Row("e4").epoch, Epoch(1)) << "v1, which is proven";
  EXPECT_TRUE(fleet_.MayLoad("e4", 1));
  EXPECT_FALSE(fleet_.Wants("e4", 2));
  fleet_.Policy({.max_staleness = 0});
  EXPECT_EQ(fleet_.Row("e4").mode, fleet::RowMode::kClosed);
}

// An engine that is sick by itself.
TEST_F(Pool, TwoDeathsOfASingleEngineDoNotKeepOthersFromWhatTheyHaveProven) {
  const VersionKey second = fleet_.Publish(2);
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Set(id, second, ResidencyState::kLoaded);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 2u);
  fleet_.Die("e4", second);
  EXPECT_TRUE(fleet_.MayLoad("e4", 2));
  fleet_.Die("e4", second);
  EXPECT_FALSE(fleet_.Wants("e4", 2)) << "it costs no third engine";
  fleet_.Boot("e1");
  EXPECT_TRUE(fleet_.MayLoad("e1", 2));
  EXPECT_EQ(Watch(second).state, WatchEvent::State::kCommitted) << "e1 is about to serve it again";
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_NE(fleet_.Verdicts()[0].words.find("engine of e4"), std::string::npos);
  fleet_.Restart();
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Rejoin(id, fleet_.DesiredTerm(id));
  EXPECT_FALSE(fleet_.Wants("e4", 2)) << "that is written down";
  EXPECT_TRUE(fleet_.Lift(second).status.ok());
  EXPECT_TRUE(fleet_.MayLoad("e4", 2));
  EXPECT_TRUE(fleet_.Verdicts().empty());
}

TEST_F(Pool, WhoHasGivenUpWhatItServedIsNotSentBackToAnEarlierDecision) {
  const VersionKey second = fleet_.Publish(2);
  for (int round = 0; round < 3; ++round) {
    for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Obey(id);
  }
  ASSERT_EQ(fleet_.Row("e4").epoch, Epoch(2));
  for (int deaths = 0; deaths < 2; ++deaths) fleet_.Die("e4", second);
  EXPECT_EQ(fleet_.Row("e4").epoch, Epoch(1)) << "its row may stand on the second still";
  fleet_.Of("e4").rows[0].mode = fleet::RowMode::kClosed;
  fleet_.Of("e4").rows[0].target = EngineName();
  fleet_.Report("e4");
  EXPECT_EQ(fleet_.Row("e4").mode, fleet::RowMode::kClosed);
  EXPECT_EQ(fleet_.Row("e4").epoch, Epoch(2));
  fleet_.Lift(second);
  EXPECT_EQ(fleet_.Row("e4").mode, fleet::RowMode::kOpen);
}

TEST_F(Pool, DeathsOfTwoEnginesEndWhatWasProvenToo) {
  const VersionKey second = fleet_.Publish(2);
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Set(id, second, ResidencyState::kLoaded);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 2u);
  fleet_.Die("e4", second);
  fleet_.Die("e3", second);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

// One that has failed by itself goes on before the one that died tries again: that would end it.
TEST_F(Pool, WhoseEngineDiedOfItIsAskedLast) {
  for (const char* id : {"e3", "e4"})
    fleet_.Step(MemberMarked{1, MemberId(id), MemberMark::kExcluded, "driver update"});
  fleet_.Alias("eval", fleet_.Publish(2));  // wanted of all, whoever has dropped out of the sync
  const VersionKey second{kMath, RunId(1), VersionNumber(2)};
  fleet_.Die("e1", second);
  ASSERT_TRUE(fleet_.MayLoad("e2", 2));
  fleet_.Fail("e2", second, Failure::kMember, "disk full");
  for (int i = 0; i < 3; ++i) {
    for (const char* id : {"e1", "e2"}) fleet_.Report(id);
    fleet_.Pass(1'000);
  }
  EXPECT_FALSE(fleet_.MayLoad("e1", 2));
  EXPECT_TRUE(fleet_.MayLoad("e2", 2));
}

TEST_F(Pool, WhatIsProvenNeedsNoTrialAfterAFailover) {
  fleet_.Restart();
  for (const char* id : {"e1", "e2", "e3", "e4"}) {
    fleet_.Join(id);
    fleet_.Boot(id);
  }
  EXPECT_EQ(fleet_.Loaders(1), 4u);
}

TEST_F(Pool, VerdictsSurviveAFailover) {
  const VersionKey killer = fleet_.Publish(2);
  fleet_.Die("e1", killer);
  fleet_.Restart();
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Join(id);
  fleet_.Die("e2", killer);
  EXPECT_EQ(fleet_.Loaders(2), 0u);
  fleet_.Restart();
  for (const char* id : {"e1", "e2", "e3", "e4"}) fleet_.Join(id);
  EXPECT_EQ(fleet_.Loaders(2), 0u);
  EXPECT_EQ(Watch(killer).reason, "POISONED");
}

TEST_F(Pool, DeathsOfAnEngineThatAnOperatorExcludedAreNobodys) {
  const VersionKey second = fleet_.Publish(2);
  for (const char* id : {"e1", "e2"}) {
    fleet_.Step(MemberMarked{1, MemberId(id), MemberMark::kExcluded, "driver update"});
    fleet_.Die(id, second);
    fleet_.Step(MemberMarked{1, MemberId(id), MemberMark::kIncluded, ""});
  }
  EXPECT_TRUE(fleet_.Verdicts().empty());
}

TEST_F(Pool, AJournalThatWasLostCountsDeathsFromTheBeginning) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Alias("eval", second);  // wanted of all, whoever has dropped out of the sync
  fleet_.Die("e1", second);
  fleet_.Die("e1", second);
  EXPECT_TRUE(fleet_.Lift(second).status.ok());
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Of("e1").journal = JournalId("another");
  fleet_.Of("e1").killers.clear();
  fleet_.Rejoin("e1", Term());
  fleet_.Die("e1", second);
  fleet_.Die("e1", second);
  EXPECT_EQ(fleet_.Verdicts().size(), 1u);
}

TEST_F(Pool, AnOperatorLiftsAVerdict) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Die("e1", second);
  fleet_.Die("e2", second);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.Pool().waits_for, "POISONED");
  EXPECT_TRUE(fleet_.Lift(second).status.ok());
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.Loaders(2), 1u) << "it is tried again, by one";
  for (const char* id : {"e3", "e1", "e2", "e4"}) fleet_.Set(id, second, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.Committed(), 2u);
  EXPECT_EQ(ReasonOf(fleet_.Lift(second).status), "VERDICT_UNKNOWN");
}

TEST_F(Pool, WhatIsGivenUpIsNeitherLeasedNorPinned) {
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", second, Failure::kRefused, "rank");
  fleet_.Fail("e2", second, Failure::kRefused, "rank");
  EXPECT_EQ(ReasonOf(fleet_.Override(second, "").status), "REFUSED");
  fleet_.Step(LeaseAsked{1, {kMath, Selector::Kind::kNewest, {}, {}, {}}, kRollout, "c", 60'000});
  EXPECT_EQ(ReasonOf(fleet_.replies_.back().status), "REFUSED");
}

class Lone : public ::testing::Test {
 protected:
  Lone() {
    fleet_.Join("e1");
    key_ = fleet_.Publish(1);
  }
  Fleet fleet_;
  VersionKey key_;
};

TEST_F(Lone, ThreeRefusalsOfALoneEngineAreAVerdict) {
  fleet_.Fail("e1", key_, Failure::kRefused);
  fleet_.Fail("e1", key_, Failure::kRefused);
  EXPECT_TRUE(fleet_.MayLoad("e1", 1));
  fleet_.Fail("e1", key_, Failure::kRefused);
  EXPECT_FALSE(fleet_.Wants("e1", 1));
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
}

TEST_F(Lone, ItIsAskedAgainOnceItWasRestarted) {
  for (int i = 0; i < 3; ++i) fleet_.Fail("e1", key_, Failure::kRefused);
  ASSERT_EQ(fleet_.Verdicts().size(), 1u);
  fleet_.Boot("e1");
  EXPECT_TRUE(fleet_.Verdicts().empty());
  fleet_.Pass(1'000);
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Committed(), 1u);
}

TEST_F(Lone, OtherLimitsAreAnotherQuestion) {
  for (int i = 0; i < 3; ++i) fleet_.Fail("e1", key_, Failure::kRefused);
  fleet_.Of("e1").limits.rank_limit = 64;
  fleet_.Report("e1");
  fleet_.Pass(1'000);
  EXPECT_TRUE(fleet_.MayLoad("e1", 1));
}

TEST_F(Lone, ItsOwnFailureIsNobodysVerdict) {
  for (int i = 0; i < 10; ++i) fleet_.Fail("e1", key_, Failure::kMember, "disk full");
  EXPECT_TRUE(fleet_.Verdicts().empty());
  EXPECT_TRUE(fleet_.MayLoad("e1", 1));
}

}  // namespace
}  // namespace lorry::sync
