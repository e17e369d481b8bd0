// Rows that go from one version to another with their engine at rest, and pauses that several rows
// share (quiesce.h).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::PauseKind;
using fleet::RowMode;

// A row that serves epoch 1, and is told of epoch 2, whose version is loaded already.
class RestTest : public ::testing::Test {
 protected:
  RestTest() { bench_.Desire(1, {1}); }
  void Decide(PauseKind kind) {
    bench_.quiesce_ = {kind, 10'000, false};
    bench_.Desire(2, {1, 2});
  }
  // The number that the row is open on; 0 while it is not.
  std::string Serves() const {
    const fleet::ObservedRow row = bench_.TheRow();
    return row.mode == RowMode::kOpen ? row.target.value : std::string(fleet::ToString(row.mode));
  }
  const std::string new_ = Bench::NameOf(2).value;
  Bench bench_;
};

TEST_F(RestTest, ADoorHoldsTheEnginePausesItFlipsAndTheEngineGoesOn) {
  Decide(PauseKind::kInPlace);
  ASSERT_EQ(bench_.pauses_.size(), 1u);
  EXPECT_EQ(bench_.pauses_[0].kind, PauseKind::kInPlace);
  EXPECT_EQ(Serves(), new_);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(bench_.records_.contains("paused"));

  bench_.silent_ = {kPauseEffect};
  bench_.quiesce_.kind = PauseKind::kRetract;
  bench_.Desire(3, {1, 2, 3});
  EXPECT_EQ(Serves(), "HELD");
  EXPECT_EQ(bench_.TheRow().waits_for, "the pause of its engine");
  EXPECT_TRUE(bench_.records_.contains("paused"));
}

TEST_F(RestTest, ADrainHoldsTheDoorUntilTheOldVersionHasNoRequest) {
  bench_.Count(1, 1);
  Decide(PauseKind::kDrain);
  EXPECT_EQ(Serves(), "HELD");
  EXPECT_EQ(bench_.TheRow().waits_for, "requests in flight");
  bench_.Count(2, 1);  // one that names the new version
  EXPECT_EQ(Serves(), "HELD");
  bench_.Count(1, 0);
  EXPECT_EQ(Serves(), new_);
  EXPECT_EQ(bench_.TheRow().revoked, Epoch());
}

TEST_F(RestTest, ADecisionIsFollowedAtTheHoldsDeadlineInAnyCase) {
  bench_.Count(1, 1);
  Decide(PauseKind::kDrain);
  bench_.Pass(Bench::kHoldForMs - 500);
  EXPECT_EQ(Serves(), "HELD");
  bench_.Pass(500);
  EXPECT_EQ(Serves(), new_);
  EXPECT_EQ(bench_.TheRow().revoked, Epoch());
}

TEST_F(RestTest, ALaterDecisionProlongsNoHold) {
  bench_.Count(1, 1);
  Decide(PauseKind::kDrain);
  bench_.Pass(Bench::kHoldForMs - 500);
  bench_.Desire(3, {1, 2});
  EXPECT_EQ(Serves(), "HELD");
  bench_.Pass(500);
  EXPECT_EQ(Serves(), new_);
  EXPECT_EQ(bench_.TheRow().epoch, Epoch(3));
}

TEST_F(RestTest, ADoorThatServesNothingOrTheSameVersionDoesNotWait) {
  Decide(PauseKind::kKeep);
  bench_.Desire(3, {1, 2});
  EXPECT_EQ(bench_.pauses_.size(), 1u) << "the version is the same";
  EXPECT_EQ(bench_.TheRow().epoch, Epoch(3));

  Bench newcomer;
  newcomer.quiesce_ = {PauseKind::kKeep, 10'000, false};
  newcomer.Desire(2, {2});
  EXPECT_EQ(newcomer.TheRow().mode, RowMode::kOpen);
  EXPECT_TRUE(newcomer.pauses_.empty());
}

TEST_F(RestTest, ALockedRowFlipsAtOnce) {
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.WantBeside(RowMode::kHeld, 2, {1, 2});
  bench_.WantBeside(RowMode::kLocked, 2, {1, 2});
  ASSERT_EQ(Serves(), "LOCKED");
  bench_.Count(1, 1);
  bench_.Desire(2, {1, 2});
  EXPECT_EQ(Serves(), new_);
  EXPECT_EQ(bench_.pauses_.size(), 1u);
}

// Two adapters on one engine.
class SharedTest : public ::testing::Test {
 protected:
  SharedTest() { Tell({Row("code", RowMode::kOpen, 1), Row("math", RowMode::kOpen, 1)}); }
  static EngineName NameOf(const std::string& adapter) {
    return EngineName(adapter + "-v1-0123456789ab");
  }
  fleet::DesiredRow Row(const std::string& adapter, RowMode mode, uint64_t epoch,
                        PauseKind kind = PauseKind::kKeep, int64_t deadline_ms = 10'000) {
    return {AdapterName(adapter),
            mode,
            Epoch(epoch),
            mode == RowMode::kOpen ? NameOf(adapter) : EngineName(),
            Bench::kHoldForMs,
            Epoch(),
            {kind, deadline_ms, false}};
  }
  void Tell(const std::vector<fleet::DesiredRow>& rows) {
    fleet::Desired desired;
    desired.term = Term{1, 1};
    desired.revision = Revision(++revision_);
    desired.journal = bench_.machine_->journal();
    for (const fleet::DesiredRow& row : rows) {
      fleet::WantedVersion wanted;
      wanted.name = NameOf(row.adapter.value);
      wanted.key = {row.adapter, RunId(1), VersionNumber(1)};
      wanted.must = true;
      desired.wanted.push_back(wanted);
    }
    desired.rows = rows;
    bench_.Tell(DesiredReceived{desired});
  }
  std::string Modes() const {
    std::string modes;
    for (const fleet::ObservedRow& row : bench_.machine_->Observe().rows)
      modes += std::string(fleet::ToString(row.mode)) + " ";
    return modes;
  }
  Bench bench_;
  uint64_t revision_ = 100;
};

TEST_F(SharedTest, TheSamePauseIsSharedByRowsThatWaitForItAndEndsWithTheLast) {
  Tell({Row("code", RowMode::kHeld, 2), Row("math", RowMode::kHeld, 2)});
  Tell({Row("code", RowMode::kLocked, 2, PauseKind::kKeep, 7'000),
        Row("math", RowMode::kLocked, 2)});
  ASSERT_EQ(bench_.pauses_.size(), 1u);
  EXPECT_EQ(bench_.pauses_[0].deadline_ms, 7'000) << "the shorter";
  EXPECT_EQ(Modes(), "LOCKED LOCKED ");
  Tell({Row("code", RowMode::kOpen, 1), Row("math", RowMode::kLocked, 2)});
  EXPECT_EQ(bench_.resumes_, 0);
  Tell({Row("code", RowMode::kOpen, 1), Row("math", RowMode::kOpen, 1)});
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(SharedTest, OneThatComesLaterOrAsksForAnotherWaitsForItsTurn) {
  for (const PauseKind kind : {PauseKind::kKeep, PauseKind::kAbort}) {
    const uint64_t epoch = kind == PauseKind::kKeep ? 2 : 4;
    const size_t before = bench_.pauses_.size();
    Tell({Row("code", RowMode::kHeld, epoch), Row("math", RowMode::kHeld, epoch)});
    Tell({Row("code", RowMode::kLocked, epoch), Row("math", RowMode::kHeld, epoch)});
    Tell({Row("code", RowMode::kLocked, epoch), Row("math", RowMode::kLocked, epoch, kind)});
    // What began before its door was shut says nothing of its requests.
    EXPECT_EQ(Modes(), "LOCKED HELD ");
    EXPECT_EQ(bench_.pauses_.size(), before + 1);
    Tell({Row("code", RowMode::kOpen, 1), Row("math", RowMode::kLocked, epoch, kind)});
    EXPECT_EQ(Modes(), "OPEN LOCKED ");
    ASSERT_EQ(bench_.pauses_.size(), before + 2);
    EXPECT_EQ(bench_.pauses_.back().kind, kind);
    Tell({Row("code", RowMode::kOpen, 1), Row("math", RowMode::kOpen, 1)});
  }
}

}  // namespace
}  // namespace lorry::proxy
