// Where a pool takes its versions from: what it decides when that is rolled back, or changes.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/state.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::PoolSource;

const PoolName kEval("eval");

class SourcesTest : public ::testing::Test {
 protected:
  SourcesTest() { fleet_.Join("e1"); }
  // They load what is staged, and open what is decided.
  void Settle(const std::vector<std::string>& ids) {
    for (int round = 0; round < 3; ++round) {
      for (const std::string& id : ids) fleet_.Obey(id);
    }
  }
  void Take(const PoolName& pool, const PoolSource& source) {
    fleet::AdapterPolicy policy = fleet_.adapter_.policy;
    policy.pools[pool] = source;
    fleet_.Policy(policy);
  }
  uint64_t CommittedIn(const PoolName& pool) const {
    const PoolStatus status = fleet_.PoolOf(pool);
    return status.committed.has_value() ? status.committed->version.key.number.value : 0;
  }

  std::vector<uint64_t> HistoryIn(const PoolName& pool) const {
    std::vector<uint64_t> numbers;
    for (const Activation& a : fleet_.PoolOf(pool).history)
      numbers.push_back(a.version.key.number.value);
    return numbers;
  }

  const PoolSource alias_{PoolSource::Kind::kAlias, {}, AliasName("best")};
  Fleet fleet_;
};

// It would be decided here after the operator's word against it, or after the newer run's.
TEST_F(SourcesTest, WhatIsRolledBackWhereAPoolTakesItsVersionsFromEndsItsSyncThere) {
  Take(kEval, {PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1", "v1"});
  fleet_.Publish(2);
  Settle({"e1"});
  ASSERT_EQ(fleet_.PoolOf(kEval).sync->version.key.number, VersionNumber(2));
  fleet_.Publish(3);
  Settle({"e1"});
  ASSERT_EQ(fleet_.PoolOf(kEval).sync->version.key.number, VersionNumber(2)) << "it goes on";
  fleet_.Override(first, "");
  Settle({"e1"});
  EXPECT_EQ(fleet_.PoolOf(kEval).last_decision->why, Abort::kOverridden);
  EXPECT_EQ(CommittedIn(kEval), 1u);

  fleet_.Override(std::nullopt, "");
  fleet_.Publish(4);
  Settle({"e1"});
  ASSERT_EQ(fleet_.PoolOf(kEval).sync->version.key.number, VersionNumber(4));
  fleet_.NewRun();
  fleet_.Publish(1);
  ASSERT_EQ(fleet_.PoolOf(kEval).sync->version.key.number, VersionNumber(4)) << "it is served";
  Settle({"e1"});
  EXPECT_EQ(fleet_.PoolOf(kEval).last_decision->why, Abort::kRunFenced);
  EXPECT_EQ(fleet_.PoolOf(kEval).sync->version.key.run, RunId(2));
}

TEST_F(SourcesTest, APoolThatTookOlderVersionsFromElsewhereComesToTheNewestWhenItTakesThemAgain) {
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  fleet_.Publish(2);
  Settle({"e1"});
  fleet_.Alias("best", first);
  Take(kRollout, alias_);
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 1u);
  Take(kRollout, {});
  Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), 2u);
}

TEST_F(SourcesTest, WhoWaitsInAPoolThatFollowsAnotherHearsWhatAFullQueueThereTurnedAway) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  Take(kEval, {PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
  VersionKey last;
  for (uint64_t number = 1; number <= fleet_.config_.backlog_limit + 2; ++number)
    last = fleet_.Publish(number);
  fleet_.Step(WatchOpened{1, last, kEval});
  EXPECT_EQ(fleet_.told_.back().state, WatchEvent::State::kFailed);
  EXPECT_EQ(fleet_.told_.back().reason, "SYNC_BACKLOG");

  fleet_.Of("v1").health = fleet::MemberHealth::kAsleep;
  fleet_.Report("v1");
  fleet_.Override(last, "");
  fleet_.Step(WatchOpened{2, last, kEval});
  EXPECT_FALSE(fleet_.told_.back().final) << "it is pinned there, and comes";
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), last.number.value);
  fleet_.Override(std::nullopt, "");
  fleet_.Step(WatchOpened{3, last, kEval});
  EXPECT_EQ(fleet_.told_.back().reason, "TOO_FEW_ENGINES") << "it is served there";
}

TEST_F(SourcesTest, WhatAQueueTurnedAwayMayComeFromWhereAPoolTakesItsVersionsNow) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  VersionKey last;
  for (uint64_t number = 1; number <= fleet_.config_.backlog_limit + 2; ++number)
    last = fleet_.Publish(number);
  fleet_.Alias("best", last);
  fleet_.Step(WatchOpened{1, last, kRollout});
  ASSERT_EQ(fleet_.told_.back().reason, "SYNC_BACKLOG");
  fleet_.Of("e1").health = fleet::MemberHealth::kAsleep;
  fleet_.Report("e1");
  Take(kRollout, alias_);
  fleet_.Step(WatchOpened{2, last, kRollout});
  EXPECT_EQ(fleet_.told_.back().reason, "TOO_FEW_ENGINES") << "it comes once engines are there";
}

TEST_F(SourcesTest, NothingWaitsBehindWhatAPoolHasTakenFromElsewhere) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  fleet_.Publish(1);
  Settle({"e1"});
  Take(kRollout, alias_);
  fleet_.Alias("best", fleet_.Publish(2));
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 2u);
  Take(kRollout, {});
  fleet_.Publish(3);
  Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), 3u);
}

TEST_F(SourcesTest, WhatWaitedBeforeThatComesInItsOrder) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  fleet_.Alias("best", first);
  fleet_.Publish(2);
  Settle({"e1"});
  fleet_.Publish(3);
  Take(kRollout, alias_);
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 1u);
  Take(kRollout, {});
  Settle({"e1"});
  EXPECT_EQ(HistoryIn(kRollout), (std::vector<uint64_t>{1, 2, 3}));
}

TEST_F(SourcesTest, APoolComesToTheNewestOfMoreThanMayWaitWhenItTakesThemAgain) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  fleet_.Alias("best", first);
  Take(kRollout, alias_);
  const uint64_t newest = fleet_.config_.backlog_limit + 3;
  const VersionKey second = fleet_.Publish(2);
  for (uint64_t number = 3; number <= newest; ++number) fleet_.Publish(number);
  Take(kRollout, {});
  fleet_.Step(WatchOpened{1, second, kRollout});
  EXPECT_EQ(fleet_.told_.back().reason, "SYNC_BACKLOG") << "the oldest makes room";
  for (uint64_t number = 3; number <= newest; ++number) Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), newest);
}

TEST_F(SourcesTest, WhatWaitsIsSyncedWhenItsPinIsLiftedBeforeItIsDecided) {
  for (const bool something_is_served : {false, true}) {
    SCOPED_TRACE(something_is_served);
    const uint64_t number = something_is_served ? 3 : 1;
    fleet_.Override(fleet_.Publish(number), "");
    fleet_.Pass(fleet_.config_.retry_min_ms);
    ASSERT_TRUE(fleet_.PoolOf(kRollout).sync.has_value());
    EXPECT_TRUE(fleet_.PoolOf(kRollout).sync->overriding);
    fleet_.Override(std::nullopt, "");
    EXPECT_EQ(fleet_.PoolOf(kRollout).last_decision->why, Abort::kOverridden);
    fleet_.Pass(fleet_.config_.retry_min_ms);
    Settle({"e1"});
    EXPECT_EQ(CommittedIn(kRollout), number);
    EXPECT_TRUE(fleet_.PoolOf(kRollout).pending.empty());
  }
}

TEST_F(SourcesTest, SoIsWhatAnAliasWasToBringWhenThePoolTakesItNoMore) {
  fleet_.Alias("best", fleet_.Publish(1));
  Take(kRollout, alias_);
  fleet_.Pass(fleet_.config_.retry_min_ms);
  ASSERT_EQ(fleet_.PoolOf(kRollout).sync->source, alias_);
  Take(kRollout, {});
  fleet_.Pass(fleet_.config_.retry_min_ms);
  Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), 1u);
}

TEST_F(SourcesTest, WhatAPinHasDecidedDoesNotWaitAnyMore) {
  fleet_.Override(fleet_.Publish(1), "");
  fleet_.Pass(fleet_.config_.retry_min_ms);
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 1u);
  EXPECT_TRUE(fleet_.PoolOf(kRollout).pending.empty());
}

TEST_F(SourcesTest, NothingUpToWhatAPinBroughtWaitsWhenThePoolTakesWhatIsPublishedAgain) {
  fleet_.Policy({.skip = fleet::SkipMode::kNever});
  const VersionKey first = fleet_.Publish(1);
  Settle({"e1"});
  fleet_.Alias("best", first);
  Take(kRollout, alias_);
  const VersionKey second = fleet_.Publish(2);
  const VersionKey third = fleet_.Publish(3);
  fleet_.Override(third, "");
  Settle({"e1"});
  ASSERT_EQ(CommittedIn(kRollout), 3u);
  Take(kRollout, {});
  fleet_.Override(std::nullopt, "");
  fleet_.Step(WatchOpened{1, second, kRollout});
  EXPECT_EQ(fleet_.told_.back().superseded_by, third);
  fleet_.Publish(4);
  Settle({"e1"});
  EXPECT_EQ(CommittedIn(kRollout), 4u);
}

TEST_F(SourcesTest, APoolThatFollowsWhatNamesNoVersionSaysSo) {
  const auto says = [&](const PoolName& pool) {
    const PoolStatus status = fleet_.PoolOf(pool);
    return status.detail.empty() ? status.waits_for : status.waits_for + ": " + status.detail;
  };
  fleet_.Of("e1").health = fleet::MemberHealth::kAsleep;
  fleet_.Report("e1");
  Take(kEval, alias_);
  fleet_.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
  EXPECT_EQ(says(kEval), "") << "nothing is stored";
  const VersionKey first = fleet_.Publish(1);
  EXPECT_EQ(says(kEval),
            "NEXT_VERSION: the pool follows alias best, which names no stored version: set it "
            "(`lorry alias math best VERSION`)");
  fleet_.Alias("best", first);
  Settle({"v1"});
  EXPECT_EQ(CommittedIn(kEval), 1u);
  EXPECT_EQ(says(kEval), "");

  Take(PoolName("shadow"), {PoolSource::Kind::kPool, kRollout, {}});
  EXPECT_EQ(says(PoolName("shadow")),
            "NEXT_VERSION: the pool follows pool rollout, which has decided nothing yet; see what "
            "that one waits for");
}

// Not what its history has merely become too long to name.
TEST_F(SourcesTest, APoolDecidesWhatItStagesHoweverFarTheFollowedOneGetsMeanwhile) {
  Take(kEval, {PoolSource::Kind::kPool, kRollout, {}});
  fleet_.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
  fleet_.Publish(1);
  Settle({"e1", "v1"});
  fleet_.Publish(2);
  Settle({"e1"});
  const uint64_t newest = 2 + kHistoryLimit + 1;
  for (uint64_t number = 3; number <= newest; ++number) {
    fleet_.Publish(number);
    Settle({"e1"});
  }
  ASSERT_EQ(CommittedIn(kRollout), newest);
  Settle({"v1"});
  EXPECT_NE(fleet_.PoolOf(kEval).last_decision->why, Abort::kOverridden);
  EXPECT_EQ(CommittedIn(kEval), newest);
  EXPECT_EQ(HistoryIn(kEval), (std::vector<uint64_t>{1, 2, newest}));
}

}  // namespace
}  // namespace lorry::sync
