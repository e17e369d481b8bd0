// What a row does with decisions, holds and locks, and which MAY version leaves for another (rows.h,
// slots.h, unload.h).
#include <variant>

#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::RowMode;

RowRecord Written(const Bench& bench) { return std::get<RowRecord>(bench.records_.at("row/math")); }

TEST(Rows, ADecisionToServeNothingClosesUnlessItIsOlder) {
  Bench bench;
  bench.Desire(3, {1});
  bench.Row(RowMode::kClosed, 2);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen);
  bench.Row(RowMode::kClosed, 4);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
  EXPECT_FALSE(Written(bench).open);
  EXPECT_EQ(Written(bench).epoch, Epoch(4));
  EXPECT_EQ(Written(bench).target, EngineName());
}

// A verdict keeps an engine that has lost the version from loading it again: the orchestrator then
// names an earlier one, to which a row does not go back.
TEST(Rows, WhatWasDecidedEarlierIsNotServedAndEndsWhatCannotBeServed) {
  for (const bool is_locked : {false, true}) {
    SCOPED_TRACE(is_locked);
    Bench bench;
    bench.Desire(1, {1});
    bench.Desire(2, {1, 2});
    if (is_locked) {
      bench.Row(RowMode::kHeld, 3);
      bench.Row(RowMode::kLocked, 3);
      ASSERT_EQ(bench.TheRow().mode, RowMode::kLocked);
    }
    bench.Desire(1, {1});
    EXPECT_EQ(bench.TheRow().target, bench.NameOf(2)) << "it is loaded here";
    bench.Reboot();
    EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
    EXPECT_EQ(bench.TheRow().epoch, Epoch(2));
    EXPECT_FALSE(Written(bench).open);
    EXPECT_EQ(Written(bench).locked, Epoch());
    bench.Desire(3, {1});
    EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen);
  }
}

TEST(Rows, AHoldOfAnEpochThatIsDecidedOrWasRevokedIsOld) {
  Bench bench;
  bench.Desire(2, {1});
  for (const uint64_t epoch : {1, 2}) {
    bench.Row(RowMode::kHeld, epoch);
    EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen) << epoch;
  }
  bench.Row(RowMode::kHeld, 3);
  ASSERT_EQ(bench.TheRow().mode, RowMode::kHeld);
  EXPECT_TRUE(bench.wake_at_.has_value() && *bench.wake_at_ <= bench.now() + 5'000);
  bench.Pass(3'000);
  bench.Row(RowMode::kHeld, 3);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kHeld);
  bench.Pass(2'000);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen) << "saying it again prolongs nothing";
  bench.Row(RowMode::kHeld, 3);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen) << "it was revoked";
}

TEST(Rows, ALockIsForTheEpochThatIsHeldOrWhereNothingIsServed) {
  Bench bench;
  bench.Desire(2, {1});
  bench.Row(RowMode::kHeld, 4);
  for (const uint64_t epoch : {1, 2, 3, 5}) {
    bench.Row(RowMode::kLocked, epoch);
    EXPECT_EQ(Written(bench).locked, Epoch()) << epoch;
  }
  bench.Row(RowMode::kLocked, 4);
  EXPECT_EQ(Written(bench).locked, Epoch(4));
  EXPECT_EQ(bench.TheRow().mode, RowMode::kLocked);

  Bench empty;
  empty.silent_ = {kLoadEffect};
  empty.Desire(1, {1});
  empty.Row(RowMode::kLocked, 2);
  EXPECT_EQ(Written(empty).locked, Epoch(2)) << "nothing was admitted anyway";
}

TEST(Rows, ALockWaitsUntilEveryContextOfTheDoorHolds) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_ = {kTableEffect};
  bench.Row(RowMode::kHeld, 2);
  bench.Row(RowMode::kLocked, 2);
  EXPECT_EQ(Written(bench).locked, Epoch()) << "some may admit still";
  bench.Tell(DoorReport{bench.machine_->door_table().revision, {}});
  EXPECT_EQ(Written(bench).locked, Epoch(2));
}

// It comes back while another barrier is under way: its old version is not what that may go back to.
TEST(Rows, WhatIsFromBeforeABarrierIsNotServedInTheMiddleOfTheNextEither) {
  for (const RowMode mode : {RowMode::kHeld, RowMode::kLocked}) {
    Bench bench;
    bench.Desire(2, {1});
    ASSERT_EQ(bench.TheRow().mode, RowMode::kOpen);
    bench.serve_from_ = 3;
    bench.Row(mode, 4);
    EXPECT_NE(bench.TheRow().mode, RowMode::kOpen);
    EXPECT_FALSE(Written(bench).open);
    bench.Pass(60'000);
    EXPECT_NE(bench.TheRow().mode, RowMode::kOpen) << "there is no hold that could end";
  }
}

TEST(Rows, WhatWasDecidedBehindTheLastBarrierIsHeldForTheNext) {
  Bench bench;
  bench.Desire(3, {1});
  bench.serve_from_ = 3;
  bench.Row(RowMode::kHeld, 4);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kHeld);
}

TEST(Rows, OfAnAdapterThatIsNotDesiredAnyMoreIsForgotten) {
  Bench bench;
  bench.Desire(1, {1});
  ASSERT_TRUE(bench.records_.contains("row/math"));
  bench.Desire(0, {1});
  EXPECT_FALSE(bench.records_.contains("row/math"));
  EXPECT_TRUE(bench.machine_->Observe().rows.empty());
  bench.Desire(0, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1) << "and keeps nothing on the engine";
}

TEST(Rows, OfAnotherPoolAreForgottenBeforeAnythingIsDesired) {
  Bench bench;
  bench.Desire(7, {1});
  EXPECT_EQ(Written(bench).pool, PoolName("rollout"));
  bench.Stop();
  bench.pool_ = PoolName("eval");
  bench.Start();
  EXPECT_FALSE(bench.records_.contains("row/math"));
  EXPECT_TRUE(bench.machine_->Observe().rows.empty());
}

// --- room

TEST(Room, TheOldestMayVersionLeavesForTheNext) {
  Bench bench(fleet::EngineKind::kVllm, 4);
  for (uint64_t number = 1; number <= 3; ++number) bench.Desire(number, {1, 2, 3, number});
  bench.Pass(2'000);
  ASSERT_EQ(bench.engine_.size(), 3u);
  bench.Desire(4, {1, 2, 3, 4});
  bench.Desire(5, {1, 2, 3, 4, 5});
  bench.Pass(2'000);
  EXPECT_FALSE(bench.engine_.contains(Bench::NameOf(1)));
  for (const uint64_t number : {2, 3, 4, 5})
    EXPECT_TRUE(bench.engine_.contains(Bench::NameOf(number))) << number;
}

TEST(Room, ABusyOneStaysAndAnIdleOneLeavesInsteadOfIt) {
  Bench bench(fleet::EngineKind::kVllm, 3);
  bench.Desire(1, {1});
  bench.Desire(2, {1, 2});
  bench.Desire(3, {1, 2, 3});
  bench.Pass(2'000);
  bench.counts_[Bench::NameOf(1)] = 1;
  bench.Tell(DoorReport{bench.machine_->door_table().revision, bench.counts_});
  bench.Desire(4, {1, 2, 3, 4});
  bench.Pass(2'000);
  EXPECT_TRUE(bench.engine_.contains(Bench::NameOf(1)));
  EXPECT_FALSE(bench.engine_.contains(Bench::NameOf(2)));
  EXPECT_TRUE(bench.engine_.contains(Bench::NameOf(4)));
}

// --- unloads

TEST(Unload, NothingIsUnloadedOrLoadedWhileTheEngineSleeps) {
  Bench bench;
  bench.Desire(1, {1});
  bench.asleep_ = true;
  bench.See();
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kAsleep);
  EXPECT_TRUE(bench.machine_->door_table().asleep) << "its door refuses";
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
  EXPECT_EQ(bench.loads_.size(), 1u);
  bench.asleep_ = false;
  bench.See();
  EXPECT_FALSE(bench.machine_->door_table().asleep);
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.Told(2), "LOADED");
}

TEST(Unload, OneThatIsNotAnsweredWedgesNoVllm) {
  Bench bench;
  bench.Desire(1, {1});
  bench.unload_outcome_ = Outcome::kUnknown;
  bench.keeps_.insert(Bench::NameOf(1));
  bench.Desire(2, {2});
  bench.Pass(5'000);
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kReady);
  EXPECT_GT(bench.unloads_, 1) << "it is asked again";
  EXPECT_LE(bench.unloads_, 6) << "once a second";
  EXPECT_EQ(bench.deletes_, 0);
}

TEST(Goodbye, ClosesTheRowsOfTheNextProcessBeforeItIsSaid) {
  Bench bench;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.TheRow().mode, RowMode::kOpen);
  EXPECT_FALSE(bench.sent_.leaves);
  bench.Tell(DoorClosed{});
  EXPECT_TRUE(bench.sent_.leaves);
  EXPECT_TRUE(Written(bench).waits);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
  bench.Stop();
  bench.Start();
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded) << "the engine went on";
  EXPECT_FALSE(bench.machine_->Observe().leaves);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed) << "before it was told anything";
  bench.Desire(1, {1});
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen);
  EXPECT_FALSE(Written(bench).waits) << "its pool has no barriers";
}

TEST(Goodbye, IsSaidInASessionAlone) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(SessionDown{});
  bench.Tell(DoorClosed{});
  EXPECT_FALSE(bench.machine_->Observe().leaves);
  EXPECT_FALSE(Written(bench).waits) << "it goes on from its journal when it is back";
  bench.Tell(SessionUp{});
  EXPECT_TRUE(bench.sent_.leaves);
  EXPECT_TRUE(Written(bench).waits);
}

TEST(Goodbye, NoRowMovesAfterIt) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(DoorClosed{});
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
  EXPECT_EQ(Written(bench).epoch, Epoch(1));
  EXPECT_TRUE(Written(bench).waits);
}

TEST(Goodbye, NothingIsLoadedAfterIt) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(DoorClosed{});
  bench.Desire(1, {1, 2});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(2), "FETCHED");
  EXPECT_EQ(bench.loads_.size(), 1U);
}

TEST(Goodbye, ALockStaysWhatItIs) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(RowMode::kHeld, 2);
  bench.Row(RowMode::kLocked, 2);
  bench.Tell(DoorClosed{});
  EXPECT_EQ(bench.TheRow().mode, RowMode::kLocked);
  EXPECT_EQ(Written(bench).locked, Epoch(2));
  EXPECT_TRUE(Written(bench).waits);
}

}  // namespace
}  // namespace lorry::proxy
