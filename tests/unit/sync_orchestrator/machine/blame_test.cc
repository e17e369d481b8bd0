// Which failures count against a version, and which only once: over new sessions, boots and reigns.
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::Failure;
using fleet::ResidencyState;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr fleet::EngineKind kSglang = fleet::EngineKind::kSglang;

class BlameTest : public ::testing::Test {
 protected:
  // It attaches again, and tells what it told before.
  void Again(const std::string& id) { fleet_.Rejoin(id, fleet_.Of(id).term); }
  void Refuse(const std::string& id, const VersionKey& key, int times = 1) {
    for (int i = 0; i < times; ++i) fleet_.Fail(id, key, Failure::kRefused, "rank");
  }
  // Of a version that is asked for whatever becomes of its sync.
  VersionKey HangAt(const std::string& id) {
    fleet_.Join(id);
    const VersionKey key = fleet_.Publish(1);
    fleet_.Alias("eval", key);
    fleet_.Fail(id, key, Failure::kEngineHung);
    return key;
  }
  std::vector<VerdictStatus> Verdicts() const { return fleet_.Verdicts(); }

  Fleet fleet_;
};

TEST_F(BlameTest, AFailureThatWasCountedIsNotCountedAgainInTheNextSession) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  Refuse("e1", key);
  for (int i = 0; i < 5; ++i) Again("e1");
  EXPECT_THAT(Verdicts(), IsEmpty());
  Refuse("e1", key, 2);
  EXPECT_THAT(Verdicts(), SizeIs(1));
}

TEST_F(BlameTest, NorIsAHang) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  fleet_.Fail("e1", key, Failure::kEngineHung);
  for (int i = 0; i < 5; ++i) Again("e1");
  EXPECT_THAT(Verdicts(), IsEmpty());
  fleet_.Fail("e1", key, Failure::kEngineHung);
  EXPECT_THAT(Verdicts(), SizeIs(1));
}

TEST_F(BlameTest, AnEngineThatHangsAndThenDiesIsOneLife) {
  const VersionKey key = HangAt("e1");
  fleet_.Die("e1", key);
  EXPECT_THAT(Verdicts(), IsEmpty());
  EXPECT_TRUE(fleet_.MayLoad("e1", 1));
  fleet_.Fail("e1", key, Failure::kEngineHung);
  ASSERT_THAT(Verdicts(), SizeIs(1)) << "in another life";
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kStalls);
}

// What hung is FAILED there until it is tried again, also on the next boot.
TEST_F(BlameTest, NorIsItsHangCountedAgainInTheNextReign) {
  const VersionKey key = HangAt("e1");
  const std::vector<fleet::ObservedResidency> failed = fleet_.Of("e1").residencies;
  fleet_.Die("e1", key);
  fleet_.Restart();
  fleet_.Of("e1").residencies = failed;
  Again("e1");
  EXPECT_THAT(Verdicts(), IsEmpty());
}

TEST_F(BlameTest, SoItIsWhereAnotherHasTakenOverBefore) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Fail("e1", key, Failure::kEngineHung);
  fleet_.Report("e1");
  ASSERT_TRUE(fleet_.MayLoad("e2", 1));
  fleet_.Die("e1", key);
  EXPECT_THAT(Verdicts(), IsEmpty());
  fleet_.Die("e2", key);
  ASSERT_THAT(Verdicts(), SizeIs(1));
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kPoisoned);
}

TEST_F(BlameTest, AnEngineThatHangsAndTheNextOneThatDiesAreTwo) {
  const VersionKey key = HangAt("e1");
  fleet_.Boot("e1");  // by somebody who saw it hang
  ASSERT_TRUE(fleet_.MayLoad("e1", 1));
  fleet_.Die("e1", key);
  ASSERT_THAT(Verdicts(), SizeIs(1));
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kStalls);
}

TEST_F(BlameTest, WhoIsLostAfterItsEngineHungIsOneLife) {
  HangAt("e1");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kLost);
  EXPECT_THAT(Verdicts(), IsEmpty());
}

TEST_F(BlameTest, WhatFailedWhileTheMemberWasAwayIsCountedAsItComesBack) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  fleet::ObservedResidency failed;
  failed.name = fleet_.NameOf(key);
  failed.key = key;
  failed.state = ResidencyState::kFailed;
  failed.failure = Failure::kRefused;
  fleet_.Of("e1").residencies = {failed};
  Again("e1");
  Refuse("e1", key, 2);
  EXPECT_THAT(Verdicts(), SizeIs(1)) << "that makes three";
}

TEST_F(BlameTest, OneThatHangsAndOneThatRefusesAreNotTwoThatRefuse) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Fail("e1", key, Failure::kEngineHung);
  fleet_.Report("e1");
  Refuse("e2", key);
  EXPECT_THAT(Verdicts(), IsEmpty());
}

TEST_F(BlameTest, WhatAMemberThatAnOperatorExcludedRefusesIsNobodysFailure) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  fleet_.Step(MemberMarked{1, MemberId("e1"), MemberMark::kExcluded, "driver update"});
  Refuse("e1", key, 5);
  EXPECT_THAT(Verdicts(), IsEmpty());
}

TEST_F(BlameTest, TheSameBootIsNoReasonToAskALoneEngineAgain) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  Refuse("e1", key, 3);
  Again("e1");
  EXPECT_THAT(Verdicts(), SizeIs(1));
}

TEST_F(BlameTest, NorIsTheRestartOfOneOfTwo) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  Refuse("e1", key);
  fleet_.Report("e1");
  Refuse("e2", key);
  ASSERT_THAT(Verdicts(), SizeIs(1));
  fleet_.Boot("e1");
  EXPECT_THAT(Verdicts(), SizeIs(1));
}

TEST_F(BlameTest, ALoneEngineThatWasRestartedIsAskedAsOftenAsTheFirstTimeInTheNextReignToo) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  Refuse("e1", key, 3);
  fleet_.Boot("e1");
  ASSERT_THAT(Verdicts(), IsEmpty());
  Refuse("e1", key);
  EXPECT_THAT(Verdicts(), IsEmpty());
  fleet_.Boot("e1");
  fleet_.Restart();
  Again("e1");
  EXPECT_THAT(Verdicts(), IsEmpty());
}

TEST_F(BlameTest, DeathsThatANewJournalCountsAnewAreCountedInTheNextReignToo) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Die("e1", key);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Of("e1").journal = JournalId("another");
  fleet_.Of("e1").killers.clear();
  Again("e1");
  fleet_.Restart();
  for (const char* id : {"e1", "e2"}) Again(id);
  fleet_.Die("e1", key);
  ASSERT_THAT(Verdicts(), SizeIs(1));
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kPoisoned);
}

TEST_F(BlameTest, WhatANewReignIsToldBeforeItAsksForTheVersionIsCountedBeforeAnOperatorSaysStop) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  ASSERT_TRUE(fleet_.MayLoad("e1", 1));
  fleet::Observed& e1 = fleet_.Of("e1");
  e1.killers = {{fleet_.NameOf(key), 1}};
  e1.boot = BootId("e1.after");
  e1.residencies.clear();
  fleet_.Restart();
  Again("e1");  // the other is waited for
  fleet_.Step(MemberMarked{1, MemberId("e1"), MemberMark::kExcluded, "driver update"});
  Again("e2");
  fleet_.Die("e2", key);
  ASSERT_THAT(Verdicts(), SizeIs(1)) << "two engines died of it, and one is excluded since";
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kPoisoned);
}

// Its proxy has begun anew, and tells of the death before it has seen what engine is there now.
TEST_F(BlameTest, ADeathWaitsForItsEngineThoughAnOperatorIncludesTheMemberBefore) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet::Observed& e1 = fleet_.Of("e1");
  e1.leaves = true;
  fleet_.Report("e1");
  e1.leaves = false;
  e1.killers = {{fleet_.NameOf(key), 1}};
  e1.boot = BootId();
  const fleet::EngineLimits limits = std::exchange(e1.limits, fleet::EngineLimits());
  Again("e1");
  fleet_.Step(MemberMarked{1, MemberId("e1"), MemberMark::kIncluded, ""});
  e1.limits = limits;
  fleet_.Boot("e1");
  fleet_.Die("e2", key);
  ASSERT_THAT(Verdicts(), SizeIs(1)) << "both engines are of one group";
  EXPECT_EQ(Verdicts()[0].verdict, Verdict::kPoisoned);
}

// --- who is able to serve what others cannot

TEST_F(BlameTest, ANewcomerThatIsNotReadyDoesNotMakeAVersionServable) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  fleet_.Join("s1", 0, kSglang);
  fleet_.Of("s1").health = fleet::MemberHealth::kAsleep;
  fleet_.Of("s1").boot = BootId();
  fleet_.Report("s1");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("s1"))});
  fleet_.Pass(5'000);
  Refuse("e1", key, 3);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.Pool().waits_for, "REFUSED");
}

TEST_F(BlameTest, AsManyAsAreNeededAreEnough) {
  fleet_.Policy({.min_engines = {.is_share = false, .value = 2}});
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  for (const char* id : {"s1", "s2"}) fleet_.Join(id, 0, kSglang);
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) Refuse(id, key);
  ASSERT_THAT(Verdicts(), SizeIs(1));
  for (const char* id : {"s1", "s2"}) fleet_.Set(id, key, ResidencyState::kLoaded);
  EXPECT_EQ(fleet_.Committed(), 1u);
}

TEST_F(BlameTest, WhereEnginesAreMissingTheVersionIsNotGivenUp) {
  fleet_.Policy({.min_engines = {.is_share = false, .value = 2}});
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) Refuse(id, key);
  fleet_.Pass(1'000);
  ASSERT_EQ(fleet_.Pool().waits_for, "REFUSED") << "two, both of them";
  fleet_.Policy({.min_engines = {.is_share = false, .value = 3}});
  EXPECT_EQ(fleet_.Pool().waits_for, "TOO_FEW_ENGINES") << "another could serve it";
}

TEST_F(BlameTest, TheReasonIsTheVerdictAndNotTheFailureOfWhoeverIsAsked) {
  fleet_.Policy({.min_engines = {.is_share = false, .value = 2}});
  for (const char* id : {"s1", "s2"}) fleet_.Join(id, 0, kSglang);
  for (const char* id : {"z1", "z2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Set("z1", key, ResidencyState::kLoaded);
  fleet_.Fail("z2", key, Failure::kMember, "disk full");
  for (const char* id : {"s1", "s2"}) Refuse(id, key);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.Pool().waits_for, "REFUSED");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("rank"));
}

// --- what is proven without a trial

TEST_F(BlameTest, WhatAMemberHasLoadedIsProvenWhereNothingIsKnownOfIt) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  for (int i = 0; i < 2; ++i) {
    for (const char* id : {"e1", "e2"}) fleet_.Obey(id);
  }
  ASSERT_EQ(fleet_.Committed(), 1u);
  fleet_.records_.erase(VerdictKey(key).text);
  fleet_.Restart();
  for (const char* id : {"e1", "e2"}) Again(id);
  fleet_.Join("e3");
  fleet_.Pass(1);
  EXPECT_TRUE(fleet_.MayLoad("e3", 1));
  EXPECT_TRUE(fleet_.records_.contains(VerdictKey(key).text));
}

}  // namespace
}  // namespace lorry::sync
