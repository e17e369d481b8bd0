// What ends a sync, who takes part in it, what begins next, and what is said while nothing does.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/state.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::Failure;
using fleet::PoolSource;
using fleet::ResidencyState;
using ::testing::HasSubstr;

const PoolName kEval("eval");

class SyncTest : public ::testing::Test {
 protected:
  // A second pool of the adapter, and one member in it.
  void AddEval(const PoolSource& source) {
    fleet::AdapterPolicy policy = fleet_.adapter_.policy;
    policy.pools[kEval] = source;
    fleet_.Policy(policy);
    fleet_.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
  }
  // A version is staged on e1, a vLLM, and s1, an SGLang, one of which is enough; `loaded` has it.
  void StageOnBothKinds(const std::string& loaded) {
    fleet::AdapterPolicy policy = fleet_.adapter_.policy;
    policy.min_engines = {.is_share = false, .value = 1};
    fleet_.Policy(policy);
    fleet_.Join("e1");
    fleet_.Join("s1", 0, fleet::EngineKind::kSglang);
    fleet_.Set(loaded, fleet_.Publish(1), ResidencyState::kLoaded);
  }
  // One that SGLang does not have.
  void AskForVllmsPause() {
    fleet::AdapterPolicy policy = fleet_.adapter_.policy;
    policy.quiesce = fleet::PauseKind::kKeep;
    fleet_.Policy(policy);
  }
  // They load what is staged, and open what is decided.
  void Settle(const std::vector<std::string>& ids) {
    for (int round = 0; round < 3; ++round) {
      for (const std::string& id : ids) fleet_.Obey(id);
    }
  }
  std::vector<std::string> Members(const PoolName& pool) const {
    std::vector<std::string> ids;
    const SyncRecord sync = *fleet_.PoolOf(pool).sync;
    for (const SyncMember& part : sync.members) ids.push_back(part.member.value);
    return ids;
  }
  uint64_t CommittedIn(const PoolName& pool) const {
    const PoolStatus status = fleet_.PoolOf(pool);
    return status.committed.has_value() ? status.committed->version.key.number.value : 0;
  }
  Abort Why(const PoolName& pool = kRollout) const {
    return fleet_.PoolOf(pool).last_decision->why;
  }
  std::vector<VersionKey> Pending() const { return fleet_.PoolOf(kRollout).pending; }
  Drop DropOf(const std::string& id) const {
    const SyncRecord sync = *fleet_.PoolOf(kRollout).sync;
    for (const SyncMember& part : sync.members) {
      if (part.member.value == id) return part.dropped;
    }
    return Drop::kNone;
  }
  void Mark(const std::string& id, MemberMark mark) {
    fleet_.Step(MemberMarked{1, MemberId(id), mark, "driver update"});
  }

  Fleet fleet_;
};

// --- pools

TEST_F(SyncTest, APoolThatFollowsAnotherTakesWhatThatDecidedWithItsOwnMembers) {
  AddEval({PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("e1");
  fleet_.Publish(1);
  EXPECT_EQ(Members(kRollout), std::vector<std::string>{"e1"});
  EXPECT_FALSE(fleet_.PoolOf(kEval).sync.has_value());
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 1u);
  EXPECT_EQ(Members(kEval), std::vector<std::string>{"v1"});
  Settle({"v1"});
  EXPECT_EQ(CommittedIn(kEval), 1u);
}

// What was rolled back there is no earlier version of what is served here.
TEST_F(SyncTest, APoolThatFollowsAnotherBeginsALineageWhereThatDoes) {
  AddEval({PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("e1");
  const auto history = [&] {
    std::vector<uint64_t> numbers;
    for (const Activation& a : fleet_.PoolOf(kEval).history)
      numbers.push_back(a.version.key.number.value);
    return numbers;
  };
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1", "v1"});
  const VersionKey second = fleet_.Publish(2);
  Settle({"e1", "v1"});
  EXPECT_EQ(history(), (std::vector<uint64_t>{1, 2}));
  fleet_.Override(first, "");
  Settle({"e1", "v1"});
  EXPECT_EQ(history(), std::vector<uint64_t>{1});
  fleet_.Override(second, "");
  Settle({"e1", "v1"});
  ASSERT_EQ(history(), std::vector<uint64_t>{2});

  Mark("v1", MemberMark::kExcluded);  // it misses the rollback
  fleet_.Override(first, "");
  Settle({"e1"});
  fleet_.Override(std::nullopt, "");
  fleet_.Publish(3);
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 3u);
  Mark("v1", MemberMark::kIncluded);
  Settle({"v1"});
  EXPECT_EQ(history(), std::vector<uint64_t>{3});
}

TEST_F(SyncTest, APoolThatFollowsAnAliasTakesWhatThatNamesAndOnceOnly) {
  AddEval({PoolSource::Kind::kAlias, {}, AliasName("best")});
  fleet_.Join("e1");
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  EXPECT_FALSE(fleet_.PoolOf(kEval).sync.has_value()) << "no alias, nothing to do";
  const VersionKey second = fleet_.Publish(2);
  Settle({"e1"});
  for (const VersionKey& key : {first, second, first}) {
    fleet_.Alias("best", key);
    Settle({"e1", "v1"});
    ASSERT_EQ(CommittedIn(kEval), key.number.value);
  }
  EXPECT_EQ(fleet_.PoolOf(kEval).history.size(), 2u) << "the first is the newest of the lineage";
  fleet_.Alias("best", std::nullopt);
  EXPECT_FALSE(fleet_.PoolOf(kEval).sync.has_value());
}

TEST_F(SyncTest, ANewRunEndsTheSyncOfWhatIsPublishedAndOfNothingElse) {
  AddEval({PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("e1");
  fleet_.Publish(1);
  Settle({"e1"});
  ASSERT_TRUE(fleet_.PoolOf(kEval).sync.has_value());
  fleet_.Publish(2);
  ASSERT_TRUE(fleet_.PoolOf(kRollout).sync.has_value());
  fleet_.NewRun();
  EXPECT_EQ(Why(), Abort::kRunFenced);
  EXPECT_TRUE(fleet_.PoolOf(kEval).sync.has_value());
}

// --- what ends it

TEST_F(SyncTest, APinEndsTheSyncOfAnotherVersionAndLiftingItThatOfThePin) {
  fleet_.Join("e1");
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  const VersionKey second = fleet_.Publish(2);
  Settle({"e1"});
  const VersionKey third = fleet_.Publish(3);
  ASSERT_EQ(fleet_.Pool().sync->version.key, third);
  const Reply pinned = fleet_.Override(first, "");
  EXPECT_EQ(fleet_.Committed(), 1u) << "at once: e1 has it still";
  EXPECT_EQ(pinned.epoch, Epoch(4)) << "which the answer names";
  fleet_.Override(third, "");
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  fleet_.Override(first, "");
  EXPECT_EQ(Why(), Abort::kOverridden);
  EXPECT_EQ(fleet_.Pool().sync, std::nullopt) << "that is what is served";
  Settle({"e1"});  // which unloads the second
  fleet_.Override(second, "");
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  fleet_.Override(std::nullopt, "");
  EXPECT_EQ(Why(), Abort::kOverridden);
  EXPECT_THAT(Pending(), ::testing::Not(::testing::Contains(second))) << "a pin was never queued";
}

TEST_F(SyncTest, WhatWasAbortedIsTriedAgainLaterUnlessSomethingNewerWaits) {
  fleet_.Join("e1");
  fleet_.Publish(1);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Pass(60'000);
  EXPECT_EQ(Why(), Abort::kStageDeadline);
  ASSERT_TRUE(fleet_.Pool().sync.has_value()) << "nobody has failed that one";
  EXPECT_EQ(fleet_.Pool().sync->version.key, second);
  EXPECT_TRUE(Pending().empty());
  fleet_.Pass(60'000);
  EXPECT_EQ(Pending(), std::vector{second});
  EXPECT_EQ(fleet_.Pool().waits_for, "RETRY_LATER");
  EXPECT_EQ(fleet_.Pool().detail, "STAGE_DEADLINE");
  fleet_.Pass(fleet_.config_.retry_min_ms);
  EXPECT_TRUE(fleet_.Pool().sync.has_value());
}

TEST_F(SyncTest, SoIsWhatAPolicyWithoutThePoolBrokeOffOnceItHasThePoolAgain) {
  fleet_.Join("e1");
  const VersionKey key = fleet_.Publish(1);
  fleet::AdapterPolicy policy = fleet_.adapter_.policy;
  const auto pools = std::exchange(policy.pools, {{kEval, {}}});
  fleet_.Policy(policy);
  EXPECT_EQ(Why(), Abort::kPolicyChanged);
  policy.pools = pools;
  fleet_.Policy(policy);
  fleet_.Pass(fleet_.config_.retry_min_ms);
  ASSERT_TRUE(fleet_.PoolOf(kRollout).sync.has_value());
  EXPECT_EQ(fleet_.PoolOf(kRollout).sync->version.key, key);
}

TEST_F(SyncTest, APolicyThatTakesThePoolsVersionsFromElsewhereEndsTheSync) {
  fleet_.Join("e1");
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  fleet_.Alias("best", first);
  const VersionKey second = fleet_.Publish(2);
  const fleet::AdapterPolicy published = fleet_.adapter_.policy;
  fleet::AdapterPolicy aliased = published;
  aliased.pools[kRollout] = {PoolSource::Kind::kAlias, {}, AliasName("best")};
  fleet_.Policy(aliased);
  EXPECT_EQ(Why(), Abort::kPolicyChanged);
  Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), 1u);
  fleet_.Step(WatchOpened{1, second, kRollout});
  EXPECT_EQ(fleet_.told_.back().state, WatchEvent::State::kStored) << "the alias does not name it";
  fleet_.Policy(published);
  fleet_.Pass(fleet_.config_.retry_min_ms);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->version.key, second);
}

TEST_F(SyncTest, APinIsSyncedWhereverThePoolTakesItsVersionsFrom) {
  fleet_.Join("e1");
  fleet_.Publish(1);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Override(second, "");
  fleet::AdapterPolicy policy = fleet_.adapter_.policy;
  policy.pools[kRollout] = {PoolSource::Kind::kAlias, {}, AliasName("best")};
  fleet_.Policy(policy);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->version.key, second);
}

TEST_F(SyncTest, WithSkipNeverWhatWasAbortedStaysInFrontOfTheOthers) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  fleet_.Join("e1");
  const VersionKey first = fleet_.Publish(1);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Pass(60'000);
  EXPECT_EQ(Pending(), (std::vector{first, second}));
  EXPECT_EQ(fleet_.Pool().waits_for, "RETRY_LATER");
}

TEST_F(SyncTest, WhoeverIsTooSlowIsExcludedWhereOthersOfItsKindHaveIt) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  fleet_.Join("s1", 0, fleet::EngineKind::kSglang);
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet_.Set(id, key, ResidencyState::kLoaded);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 1u);
  EXPECT_EQ(fleet_.StatusOf("e1").standing, MemberStanding::kReady);
  EXPECT_EQ(fleet_.StatusOf("e3").standing, MemberStanding::kExcluded);
  EXPECT_EQ(fleet_.StatusOf("e3").reason, ToString(Drop::kTooSlow));
  EXPECT_EQ(fleet_.StatusOf("s1").standing, MemberStanding::kReady) << "nobody of its kind has it";
}

// A pause may last longer than a stage deadline, and its engine loads nothing meanwhile.
TEST_F(SyncTest, WhoeverWasPausedMeanwhileIsNotBlamedForBeingTooSlow) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  fleet_.Of("e3").paused = fleet::DesiredPause{.kind = fleet::PauseKind::kWait};
  fleet_.Report("e3");
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet_.Set(id, key, ResidencyState::kLoaded);
  fleet_.Pass(59'000);
  fleet_.Of("e3").paused.reset();  // it has had no time since
  fleet_.Report("e3");
  fleet_.Pass(1'000);
  ASSERT_EQ(fleet_.Committed(), 1u) << "without it";
  EXPECT_EQ(fleet_.StatusOf("e3").standing, MemberStanding::kReady);
  fleet_.Set("e3", key, ResidencyState::kLoaded);
  fleet_.Publish(2);
  for (const char* id : {"e1", "e2"}) fleet_.Obey(id);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 2u);
  EXPECT_EQ(fleet_.StatusOf("e3").standing, MemberStanding::kExcluded) << "that was long ago";
}

TEST_F(SyncTest, WhoeverIsPausedAtTheDeadlineIsNotBlamedEither) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Of("e3").paused = fleet::DesiredPause{.kind = fleet::PauseKind::kWait};
  fleet_.Report("e3");
  for (const char* id : {"e1", "e2"}) fleet_.Set(id, key, ResidencyState::kLoaded);
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Committed(), 1u);
  EXPECT_EQ(fleet_.StatusOf("e3").standing, MemberStanding::kReady);
}

TEST_F(SyncTest, WhoeverFallsAsleepMeanwhileIsNeitherWaitedForNorBlamed) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet_.Set(id, key, ResidencyState::kLoaded);
  ASSERT_EQ(fleet_.Committed(), 0u);
  fleet_.Of("e3").health = fleet::MemberHealth::kAsleep;
  fleet_.Report("e3");
  EXPECT_EQ(fleet_.Committed(), 1u);
  fleet_.Of("e3").health = fleet::MemberHealth::kReady;
  fleet_.Report("e3");
  EXPECT_EQ(fleet_.StatusOf("e3").standing, MemberStanding::kReady);
}

// Nothing but an operator, or what keeps the engines from it, ends this: that is what skip=never says.
TEST_F(SyncTest, WithSkipNeverAVersionThatEnginesFailByThemselvesSaysWhoWaitsBehindIt) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  fleet_.Join("e1");
  const VersionKey first = fleet_.Publish(1);
  const VersionKey second = fleet_.Publish(2);
  fleet_.Fail("e1", first, fleet::Failure::kMember, "disk full");
  fleet_.Pass(60'000);
  ASSERT_EQ(fleet_.Pool().waits_for, "RETRY_LATER");
  EXPECT_THAT(fleet_.Pool().detail, ::testing::HasSubstr("1 newer wait behind it"));
  EXPECT_THAT(fleet_.Pool().detail, ::testing::HasSubstr("set skip=allowed"));
  fleet_.Policy({.skip = fleet::SkipMode::kAllowed});
  fleet_.Pass(fleet_.config_.retry_min_ms);
  fleet_.Pass(60'000);  // it is tried once more
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->version.key, second);
}

// --- who takes part

TEST_F(SyncTest, WhoeverCannotServeItUnderAPolicyThatHasChangedTakesNoFurtherPart) {
  StageOnBothKinds("e1");
  AskForVllmsPause();
  EXPECT_EQ(fleet_.Committed(), 1u) << "s1 is waited for no longer";
}

TEST_F(SyncTest, NorDoesItCountThoughItHasTheVersion) {
  StageOnBothKinds("s1");
  AskForVllmsPause();
  EXPECT_EQ(DropOf("s1"), Drop::kUnfit);
  const auto members = fleet_.Pool().sync->members;
  EXPECT_THAT(members.back().words, ::testing::HasSubstr("QUIESCE_UNSUPPORTED"));
  fleet_.Pass(60'000);
  EXPECT_EQ(Why(), Abort::kStageDeadline) << "nobody who could serve it has it";
}

// The record may have as many of these as there are engines, and is text.
TEST_F(SyncTest, OfWhatAMemberSaysInALongTextTheBeginningIsWrittenDown) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  std::string traceback = "_";
  for (int i = 0; i < 10'000; ++i) traceback += "\u00e9";
  fleet_.Set("e1", key, ResidencyState::kLoaded);
  fleet_.Fail("e2", key, Failure::kMember, traceback);
  ASSERT_EQ(DropOf("e2"), Drop::kFailed);
  EXPECT_THAT(fleet_.StatusOf("e2").reason, HasSubstr("FAILED: _"));
  EXPECT_LT(Encode(fleet_.records_.at("sync/math/rollout")).size(), 1'000u);
}

TEST_F(SyncTest, WhoeverAnOperatorTakesAwayTakesNoFurtherPart) {
  fleet_.Policy({.min_engines = {.is_share = false, .value = 1}});
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  fleet_.Publish(1);
  Mark("e2", MemberMark::kExcluded);
  EXPECT_EQ(DropOf("e2"), Drop::kExcluded);
  Mark("e3", MemberMark::kDead);
  EXPECT_EQ(DropOf("e3"), Drop::kDead);
  fleet_.Obey("e1");
  EXPECT_EQ(fleet_.Committed(), 1u);
  fleet_.Publish(2);
  EXPECT_EQ(Members(kRollout), std::vector<std::string>{"e1"});
}

TEST_F(SyncTest, WhoeverIsLostTakesNoFurtherPart) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  fleet_.Publish(1);
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  EXPECT_EQ(DropOf("e2"), Drop::kNone) << "it may come back yet";
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_EQ(DropOf("e2"), Drop::kLost);
}

// --- what is next

TEST_F(SyncTest, WhatNoEngineHereCanServeDoesNotStandInTheWay) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  fleet_.Join("e1");
  fleet_.Of("e1").limits.rank_limit = 16;
  fleet_.Report("e1");
  const VersionKey large = fleet_.Publish(1, {.rank_max = 64});
  EXPECT_EQ(fleet_.Pool().waits_for, "TOO_FEW_ENGINES");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("e1: rank 64 is above the engine's"));
  const VersionKey small = fleet_.Publish(2, {.rank_max = 16});
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->version.key, small);
  EXPECT_EQ(Pending(), std::vector{large});
}

TEST_F(SyncTest, AFullEngineDelaysTheOthersNoLongerThanASlowOne) {
  fleet_.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  for (const char* id : {"e1", "e2"}) fleet_.Join(id, 4);
  fleet_.Join("e3", 1);
  fleet_.Publish(1);
  Settle({"e1", "e2", "e3"});
  ASSERT_EQ(fleet_.Committed(), 1u);
  fleet_.Publish(2);
  EXPECT_EQ(fleet_.Pool().waits_for, "NO_SLOT");
  fleet_.Pass(59'999);
  EXPECT_FALSE(fleet_.Pool().sync.has_value());
  fleet_.Pass(1);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(DropOf("e1"), Drop::kNone);
  EXPECT_EQ(DropOf("e3"), Drop::kNoSlot);
}

TEST_F(SyncTest, WhereTooFewEnginesHaveRoomNothingBegins) {
  fleet_.Policy(
      {.min_engines = {.is_share = false, .value = 2}, .keep = {fleet::KeepRule::Kind::kCount, 1}});
  fleet_.Join("e1", 4);
  fleet_.Join("e2", 1);
  fleet_.Publish(1);
  Settle({"e1", "e2"});
  ASSERT_EQ(fleet_.Committed(), 1u);
  fleet_.Publish(2);
  fleet_.Pass(600'000);
  EXPECT_EQ(fleet_.Pool().waits_for, "NO_SLOT");
  fleet_.Policy(
      {.min_engines = {.is_share = false, .value = 1}, .keep = {fleet::KeepRule::Kind::kCount, 1}});
  EXPECT_TRUE(fleet_.Pool().sync.has_value()) << "one has";
}

// --- what is said

TEST_F(SyncTest, AFewOfThoseThatAreNotReadyAreNamed) {
  for (const std::string id : {"e1", "e2", "e3", "e4", "e5", "e6"}) {
    fleet_.Join(id);
    fleet_.Of(id).health = fleet::MemberHealth::kJoining;
    fleet_.Of(id).health_detail = "";
    fleet_.Report(id);
  }
  fleet_.Publish(1);
  EXPECT_EQ(fleet_.Pool().detail,
            "0 engines are ready for it, 3 are needed; e1: JOINING; e2: JOINING; e3: JOINING; "
            "e4: JOINING; and 2 more");
  fleet_.Of("e1").health_detail = "ENGINE_LORA_DISABLED";
  fleet_.Report("e1");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("e1: JOINING, ENGINE_LORA_DISABLED"));
  Mark("e6", MemberMark::kDead);
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("and 1 more"));
  Mark("e5", MemberMark::kDead);
  EXPECT_THAT(fleet_.Pool().detail, ::testing::EndsWith("e4: JOINING"));
}

TEST_F(SyncTest, OfEnginesThatHangThePoolSaysSo) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet_.Fail(id, key, Failure::kEngineHung);
  fleet_.Pass(1'000);
  EXPECT_EQ(fleet_.Pool().waits_for, "STALLS_ENGINES");
}

TEST_F(SyncTest, AfterARollbackTheNewestIsSaidToBeGivenUpWhereItIs) {
  for (const char* id : {"e1", "e2"}) fleet_.Join(id);
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1", "e2"});
  const VersionKey second = fleet_.Publish(2);
  Settle({"e1", "e2"});
  fleet_.Override(first, "");
  Settle({"e1", "e2"});
  fleet_.Die("e1", second);
  fleet_.Die("e2", second);
  fleet_.Override(std::nullopt, "");
  ASSERT_EQ(fleet_.Committed(), 1u);
  EXPECT_EQ(fleet_.Pool().waits_for, "POISONED");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("engines died"));
}

// A failure of before this reign says nothing of what was asked in it.
TEST_F(SyncTest, AFailureCountsOnceTheMemberHasAnsweredThisReign) {
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  const Term before = fleet_.DesiredTerm("e1");
  fleet_.Fail("e1", key, Failure::kMember);
  fleet_.Restart();
  for (const char* id : {"e1", "e2", "e3"}) fleet_.Rejoin(id, before);
  fleet_.Set("e2", key, ResidencyState::kLoaded);
  EXPECT_EQ(DropOf("e1"), Drop::kNone);
  fleet_.Report("e1");
  EXPECT_EQ(DropOf("e1"), Drop::kFailed);
}

}  // namespace
}  // namespace lorry::sync
