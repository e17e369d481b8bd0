#include "services/sync_orchestrator/driver/sync_observer.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>

namespace lorry::sync {
namespace {

TEST(SyncObserver, MeasuresThePhasesOfASync) {
  std::map<std::string, double> phases;
  SyncObserver observer(
      {.phase = [&](std::string_view phase, double s) { phases[std::string(phase)] = s; }});
  const VersionKey v1{AdapterName("policy"), RunId(1), VersionNumber(1)};
  const PoolName pool("rollout");
  observer.OnPersisted({{"sync/policy/rollout", SyncRecord{.version = {.key = v1}}}}, 1'000, 1'010);
  observer.OnPersisted({{"decision/policy/rollout", DecisionRecord{.version = v1, .commit = true}}},
                       3'000, 3'020);
  observer.OnEnded({v1, pool}, WatchEvent::State::kActive, 3'050);
  const PhaseTimes times = observer.Times(v1, pool, 900, 9'999);
  EXPECT_EQ(times.wait_ms, 100);
  EXPECT_EQ(times.stage_ms, 2'000);
  EXPECT_EQ(times.commit_ms, 20);
  EXPECT_EQ(times.activate_ms, 30);
  EXPECT_DOUBLE_EQ(phases["stage"], 2.0);
}

TEST(SyncObserver, MeasuresFromTheFirstSightOfAVersionUntilItIsServed) {
  double served_after = 0;
  SyncObserver observer(
      {.serving = [&](const AdapterName& adapter, const PoolName& pool, double s) {
        EXPECT_EQ(adapter.value + " in " + pool.value, "policy in rollout");
        served_after = s;
      }});
  const VersionKey v1{AdapterName("policy"), RunId(1), VersionNumber(1)};
  const PoolName pool("rollout");
  const auto sync = [&](uint64_t epoch, Tick at) {
    const SyncRecord record{.epoch = Epoch(epoch), .version = {.key = v1}};
    observer.OnPersisted({{"sync/policy/rollout", record}}, at, at);
  };
  const auto decide = [&](bool commit, Tick at) {
    const DecisionRecord record{.version = v1, .commit = commit};
    observer.OnPersisted({{"decision/policy/rollout", record}}, at, at);
  };
  observer.OnPersisted({{"pool/policy/rollout", PoolRecord{.pending = {v1}}}}, 1'000, 1'000);
  sync(1, 1'500);
  decide(false, 2'000);  // broken off, and tried again
  sync(2, 3'000);
  decide(true, 4'000);
  observer.OnEnded({v1, pool}, WatchEvent::State::kActive, 5'000);
  EXPECT_DOUBLE_EQ(served_after, 4.0);
  sync(3, 60'000);  // a rollback to it, much later
  decide(true, 60'400);
  observer.OnEnded({v1, pool}, WatchEvent::State::kActive, 60'500);
  EXPECT_DOUBLE_EQ(served_after, 0.5);
}

class Counted : public testing::Test {
 protected:
  static VersionKey Version(uint64_t number) {
    return {AdapterName("policy"), RunId(1), VersionNumber(number)};
  }
  SyncObserver::Key KeyOf(uint64_t number) const { return {Version(number), pool_}; }
  std::vector<SyncObserver::Key> Persist(std::optional<RecordValue> value,
                                         const std::string& kind) {
    ++now_;
    return observer_.OnPersisted({{kind + "/policy/rollout", std::move(value)}}, now_, now_);
  }
  std::vector<SyncObserver::Key> Decide(uint64_t number, bool commit) {
    return Persist(DecisionRecord{.version = Version(number), .commit = commit}, "decision");
  }
  std::map<std::string, int> ended_, phases_;
  SyncObserver observer_{
      {.phase = [this](std::string_view p, double) { ++phases_[std::string(p)]; },
       .ended = [this](std::string_view r) { ++ended_[std::string(r)]; }}};
  const PoolName pool_{"rollout"};
  Tick now_ = 1'000;
};

TEST_F(Counted, WhatWaitsIsFollowedOnceAndCountedAtItsEnd) {
  const PoolRecord waits{.pending = {Version(1), Version(2)}};
  EXPECT_EQ(Persist(waits, "pool"), (std::vector{KeyOf(1), KeyOf(2)}));
  EXPECT_TRUE(Persist(waits, "pool").empty());
  observer_.OnEnded(KeyOf(1), WatchEvent::State::kSuperseded, ++now_);
  observer_.OnEnded(KeyOf(2), WatchEvent::State::kFailed, ++now_);
  EXPECT_EQ(ended_, (std::map<std::string, int>{{"failed", 1}, {"superseded", 1}}));
}

TEST_F(Counted, DecisionsAreCountedAndACommitIsFollowedUntilItIsServed) {
  Persist(SyncRecord{.epoch = Epoch(1), .version = {.key = Version(1)}}, "sync");
  EXPECT_TRUE(Decide(1, false).empty());
  Persist(SyncRecord{.epoch = Epoch(2), .version = {.key = Version(1)}}, "sync");
  EXPECT_EQ(Decide(1, true), std::vector{KeyOf(1)});
  observer_.OnEnded(KeyOf(1), WatchEvent::State::kActive, ++now_);
  EXPECT_EQ(ended_, (std::map<std::string, int>{{"aborted", 1}, {"active", 1}}));
  EXPECT_EQ(phases_, (std::map<std::string, int>{{"activate", 1}, {"commit", 1}, {"stage", 1}}));
}

TEST_F(Counted, ARollbackIsMeasuredLikeAnyOtherSync) {
  for (uint64_t epoch = 1; epoch <= 2; ++epoch) {
    Persist(SyncRecord{.epoch = Epoch(epoch), .version = {.key = Version(1)}}, "sync");
    Decide(1, true);
    observer_.OnEnded(KeyOf(1), WatchEvent::State::kActive, ++now_);
  }
  EXPECT_EQ(phases_["activate"], 2);
}

TEST_F(Counted, WhatAPoolTurnedAwayIsForgottenWithIt) {
  const PoolRecord full{.refused = {Version(1)}};
  Persist(full, "pool");
  Persist(full, "pool");
  EXPECT_EQ(ended_["failed"], 1);
  Persist(std::nullopt, "pool");
  Persist(full, "pool");
  EXPECT_EQ(ended_["failed"], 2);
}

TEST_F(Counted, WhatAnEarlierProcessCountedIsNotCountedAgain) {
  const PoolRecord left{.pending = {Version(2)}, .refused = {Version(3)}};
  const Records records = {
      {"decision/policy/rollout", DecisionRecord{.version = Version(1), .commit = true}},
      {"pool/policy/rollout", left}};
  EXPECT_EQ(observer_.OnRestored(records, now_), std::vector{KeyOf(2)});
  PoolRecord more = left;
  more.refused.push_back(Version(4));
  EXPECT_TRUE(Persist(more, "pool").empty());
  EXPECT_EQ(ended_, (std::map<std::string, int>{{"failed", 1}}));
}

}  // namespace
}  // namespace lorry::sync
