// When an engine is paused, for how long, and that it always goes on afterwards (pauses.h).
#include <variant>

#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::PauseKind;

class PauseTest : public ::testing::Test {
 protected:
  PauseTest() { bench_.Desire(1, {1}); }
  void Want(PauseKind kind, int64_t deadline_ms = 10'000) {
    bench_.pause_ = fleet::DesiredPause{kind, deadline_ms, true};
    bench_.Desire(1, {1});
  }
  void WantNone() {
    bench_.pause_.reset();
    bench_.Desire(1, {1});
  }
  bool IsWrittenDown() const { return bench_.records_.contains("paused"); }
  std::optional<fleet::DesiredPause> Told() const { return bench_.machine_->Observe().paused; }
  bool DoorKnows() const { return bench_.machine_->door_table().paused; }
  size_t pauses() const { return bench_.pauses_.size(); }

  Bench bench_;
};

TEST_F(PauseTest, OneThatIsDesiredHoldsUntilItIsNot) {
  Want(PauseKind::kKeep);
  ASSERT_EQ(pauses(), 1u);
  EXPECT_EQ(bench_.pauses_[0].kind, PauseKind::kKeep);
  EXPECT_TRUE(bench_.pauses_[0].flush);
  EXPECT_EQ(Told(), bench_.pause_);
  EXPECT_TRUE(IsWrittenDown());
  EXPECT_TRUE(DoorKnows());
  EXPECT_EQ(bench_.resumes_, 0);
  WantNone();
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_EQ(Told(), std::nullopt);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_FALSE(DoorKnows());
  Want(PauseKind::kNone);
  EXPECT_EQ(pauses(), 1u);
}

TEST_F(PauseTest, ItEndsAtItsOwnDeadlineAndDoesNotBeginAgainByItself) {
  Want(PauseKind::kKeep, 2'000);
  bench_.Pass(1'500);
  EXPECT_EQ(bench_.resumes_, 0);
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 1);
  bench_.Pass(10'000);
  EXPECT_EQ(pauses(), 1u) << "it was spent";
  WantNone();
  Want(PauseKind::kKeep);
  EXPECT_EQ(pauses(), 2u) << "that is another";
}

TEST_F(PauseTest, WithoutTheOrchestratorNothingStaysPaused) {
  Want(PauseKind::kKeep);
  bench_.Tell(SessionDown{});
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(IsWrittenDown());
}

TEST_F(PauseTest, OneThatFailsMayHaveHappenedAndIsEnded) {
  bench_.pause_outcome_ = Outcome::kUnknown;
  Want(PauseKind::kKeep);
  EXPECT_EQ(Told(), std::nullopt);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(IsWrittenDown());
  bench_.Pass(5'000);
  EXPECT_EQ(pauses(), 1u) << "nor is it tried again";
}

TEST_F(PauseTest, UntilItIsAnsweredItIsNotToldToHold) {
  bench_.silent_ = {kPauseEffect};
  Want(PauseKind::kKeep);
  EXPECT_TRUE(DoorKnows());
  EXPECT_EQ(Told(), std::nullopt);
  for (const OpId op : {OpId{0}, OpId{9'999}}) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_EQ(Told(), std::nullopt) << "somebody else's answer";
}

TEST_F(PauseTest, AResumeIsAskedForUntilTheEngineSaysSo) {
  Want(PauseKind::kKeep);
  bench_.resume_outcome_ = Outcome::kFailed;
  WantNone();
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_TRUE(DoorKnows());
  EXPECT_TRUE(IsWrittenDown());
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 1);
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 2);
  bench_.resume_outcome_ = Outcome::kOk;
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 3);
  EXPECT_FALSE(DoorKnows());
}

TEST_F(PauseTest, AnAnswerToAResumeIsWaitedForHoweverLateItIs) {
  Want(PauseKind::kKeep);
  bench_.silent_ = {kResumeEffect};
  WantNone();
  bench_.silent_.clear();
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.resumes_, 0) << "the one under way";
  for (const OpId op : {OpId{0}, OpId{9'999}}) bench_.Tell(ResumeDone{op, Outcome::kOk});
  EXPECT_TRUE(DoorKnows()) << "somebody else's answer";
}

TEST_F(PauseTest, NothingIsResumedOnAnEngineThatDoesNotAnswer) {
  Want(PauseKind::kKeep);
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  WantNone();
  bench_.Pass(5'000);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_TRUE(IsWrittenDown());
  bench_.See();
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(PauseTest, NorIsOnePausedThatDoesNotAnswer) {
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  Want(PauseKind::kKeep);
  EXPECT_EQ(pauses(), 0u);
  bench_.See();
  EXPECT_EQ(pauses(), 1u);
}

TEST_F(PauseTest, ItEndsWithItsBoot) {
  Want(PauseKind::kKeep);
  bench_.pause_.reset();
  bench_.Reboot();
  EXPECT_EQ(bench_.resumes_, 0) << "the new one was never paused";
  bench_.Desire(1, {1});
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_FALSE(DoorKnows());
}

TEST_F(PauseTest, OneOfAnotherKindBeginsAfterTheFirstHasEnded) {
  Want(PauseKind::kKeep);
  Want(PauseKind::kAbort);
  EXPECT_EQ(bench_.resumes_, 1);
  ASSERT_EQ(pauses(), 2u);
  EXPECT_EQ(bench_.pauses_[1].kind, PauseKind::kAbort);
  EXPECT_EQ(Told()->kind, PauseKind::kAbort);
}

TEST_F(PauseTest, ADrainHoldsWhileNothingRunsAndAsksTheEngineForNothing) {
  bench_.counts_[Bench::NameOf(1)] = 1;
  bench_.Tell(DoorReport{bench_.machine_->door_table().revision, bench_.counts_});
  Want(PauseKind::kDrain);
  EXPECT_EQ(Told(), std::nullopt);
  EXPECT_TRUE(DoorKnows());
  bench_.counts_.clear();
  bench_.Tell(DoorReport{bench_.machine_->door_table().revision, {}});
  EXPECT_EQ(Told(), bench_.pause_);
  bench_.counts_[Bench::NameOf(1)] = 1;
  bench_.Tell(DoorReport{bench_.machine_->door_table().revision, bench_.counts_});
  EXPECT_EQ(Told(), std::nullopt);
  WantNone();
  EXPECT_FALSE(DoorKnows());
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_EQ(pauses(), 0u);
  EXPECT_EQ(bench_.resumes_, 0);
}

TEST_F(PauseTest, NothingIsUnloadedWhileItHolds) {
  Want(PauseKind::kKeep, 600'000);
  bench_.Desire(2, {2});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.pause_.reset();
  bench_.Desire(2, {2});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 1);
}

}  // namespace
}  // namespace lorry::proxy
