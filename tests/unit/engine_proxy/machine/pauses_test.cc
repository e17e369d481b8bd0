// When an engine is paused, for how long, and that it always goes on afterwards (pauses.h).
#include <variant>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::PauseKind;
using fleet::RowMode;

// A row that serves epoch 1 is held and locked for epoch 2, with its engine at rest.
class PauseTest : public ::testing::Test {
 protected:
  PauseTest() { bench_.Desire(1, {1}); }
  void Lock(PauseKind kind, int64_t deadline_ms = 10'000, uint64_t epoch = 2) {
    bench_.quiesce_ = fleet::DesiredPause{kind, deadline_ms, true};
    bench_.Row(RowMode::kHeld, epoch);
    bench_.Row(RowMode::kLocked, epoch);
  }
  // As after an ABORT: the row opens where it was.
  void Unlock() { bench_.Row(RowMode::kOpen, 1); }
  bool IsWrittenDown() const { return bench_.records_.contains("paused"); }
  bool IsLocked() const { return bench_.TheRow().mode == RowMode::kLocked; }
  std::optional<fleet::DesiredPause> Told() const { return bench_.machine_->Observe().paused; }
  bool DoorKnows() const { return bench_.machine_->door_table().paused; }
  size_t pauses() const { return bench_.pauses_.size(); }

  Bench bench_;
};

TEST_F(PauseTest, ARowIsLockedOnceItsEngineIsPausedAndTheEngineGoesOnWhenItOpens) {
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, true};
  bench_.Row(RowMode::kHeld, 2);
  EXPECT_EQ(pauses(), 0u) << "some other door may never hold";
  bench_.silent_ = {kPauseEffect};
  bench_.Row(RowMode::kLocked, 2);
  ASSERT_EQ(bench_.TheRow().mode, RowMode::kHeld);
  EXPECT_EQ(bench_.TheRow().waits_for, "the pause of its engine");
  EXPECT_TRUE(IsWrittenDown()) << "before the engine hears of it";
  bench_.silent_.clear();
  Unlock();
  bench_.Pass(2'000);

  Lock(PauseKind::kKeep, 10'000, 3);
  ASSERT_EQ(pauses(), 1u);
  EXPECT_EQ(bench_.pauses_[0].kind, PauseKind::kKeep);
  EXPECT_EQ(bench_.pauses_[0].deadline_ms, 10'000);
  EXPECT_TRUE(bench_.pauses_[0].flush);
  EXPECT_TRUE(IsLocked());
  EXPECT_EQ(Told(), bench_.quiesce_);
  EXPECT_TRUE(IsWrittenDown());
  EXPECT_TRUE(DoorKnows());
  const int resumes = bench_.resumes_;
  bench_.Desire(3, {1});
  EXPECT_EQ(bench_.TheRow().mode, RowMode::kOpen);
  EXPECT_EQ(bench_.resumes_, resumes + 1);
  EXPECT_EQ(Told(), std::nullopt);
  EXPECT_FALSE(IsWrittenDown());
  bench_.Pass(500);
  EXPECT_FALSE(DoorKnows());
}

TEST_F(PauseTest, ARowThatServesNothingWaitsForNothing) {
  Bench newcomer;
  newcomer.quiesce_ = {PauseKind::kKeep, 10'000, true};
  newcomer.Row(RowMode::kLocked, 1);
  EXPECT_EQ(newcomer.TheRow().mode, RowMode::kLocked);
  EXPECT_TRUE(newcomer.pauses_.empty());
}

TEST_F(PauseTest, ItEndsWithTheAbortOfTheSyncThatItWasFor) {
  Lock(PauseKind::kKeep);
  Unlock();
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_EQ(bench_.TheRow().mode, RowMode::kOpen);
  Lock(PauseKind::kKeep, 10'000, 3);
  EXPECT_EQ(pauses(), 2u) << "another sync";
}

TEST_F(PauseTest, ItEndsWithTheHoldThatItWasFor) {
  bench_.pause_outcome_ = Outcome::kOk;
  bench_.silent_ = {kPauseEffect};
  Lock(PauseKind::kWait, 60'000);
  bench_.Pass(4'500);
  EXPECT_EQ(bench_.resumes_, 0);
  bench_.Pass(500);
  EXPECT_EQ(bench_.TheRow().mode, RowMode::kOpen);
  EXPECT_EQ(bench_.TheRow().revoked, Epoch(2));
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(PauseTest, ItEndsAtItsOwnDeadlineAndDoesNotBeginAgain) {
  Lock(PauseKind::kKeep, 2'000);
  bench_.Pass(1'500);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_TRUE(bench_.wake_at_.has_value() && *bench_.wake_at_ <= bench_.now() + 500);
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_TRUE(IsLocked()) << "a decision alone ends that";
  bench_.Pass(10'000);
  EXPECT_EQ(pauses(), 1u);
}

TEST_F(PauseTest, ARowGoesOnByItsRequestsTheMomentThatItsTimeIsOver) {
  bench_.silent_ = {kPauseEffect, kResumeEffect};
  Lock(PauseKind::kWait, 2'000);
  bench_.Pass(1'500);
  EXPECT_FALSE(IsLocked());
  bench_.Pass(500);
  EXPECT_TRUE(IsLocked()) << "no request is left";
}

TEST_F(PauseTest, TheDoorKnowsBeforeTheEngineHearsOfIt) {
  bench_.silent_ = {kPauseEffect, kTableEffect};
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, true};
  bench_.Row(RowMode::kHeld, 2);
  bench_.Row(RowMode::kLocked, 2);
  bench_.Report();  // of the table that holds the row
  ASSERT_TRUE(IsWrittenDown());
  EXPECT_TRUE(DoorKnows());
}

TEST_F(PauseTest, WhoeverLooksSeesThatTheEngineHasNotGoneOnYet) {
  const auto detail = [&] { return bench_.machine_->Observe().health_detail; };
  bench_.resume_outcome_ = Outcome::kUnknown;
  Lock(PauseKind::kKeep);
  EXPECT_EQ(detail(), "") << "the pause itself is told as such";
  Unlock();
  EXPECT_THAT(bench_.sent_.health_detail, ::testing::StartsWith("resuming: "));
  EXPECT_EQ(bench_.sent_.health, fleet::MemberHealth::kReady);
  bench_.resume_outcome_ = Outcome::kOk;
  bench_.Pass(2'000);
  EXPECT_EQ(bench_.sent_.health_detail, "");
}

TEST_F(PauseTest, WithoutTheOrchestratorNothingStaysPaused) {
  Lock(PauseKind::kKeep);
  bench_.Tell(SessionDown{});
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_TRUE(IsLocked());
}

// It would keep the very requests that the door waits for.
TEST_F(PauseTest, ADoorThatDrainsHasNothingPaused) {
  Lock(PauseKind::kKeep);
  ASSERT_EQ(bench_.resumes_, 0);
  bench_.Tell(DoorDrains{});
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_TRUE(IsLocked()) << "as it was at rest before";
  bench_.Tell(DoorClosed{});
  EXPECT_TRUE(bench_.sent_.leaves);
}

TEST_F(PauseTest, NorDoesOneBeginWhileItDrains) {
  bench_.Count(1, 1);
  bench_.Tell(DoorDrains{});
  Lock(PauseKind::kKeep);
  EXPECT_EQ(pauses(), 0u);
  EXPECT_EQ(bench_.TheRow().waits_for, "requests in flight");
  bench_.Count(1, 0);
  EXPECT_TRUE(IsLocked());
}

TEST_F(PauseTest, NorDoesItBeginWithoutIt) {
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Count(1, 1);
  bench_.Row(RowMode::kHeld, 2);
  bench_.silent_ = {kTableEffect};
  bench_.Tell(SessionDown{});
  bench_.Row(RowMode::kLocked, 2);
  EXPECT_EQ(pauses(), 0u);
  EXPECT_FALSE(IsLocked()) << "requests run";
  bench_.Count(1, 0);
  EXPECT_TRUE(IsLocked());
}

TEST_F(PauseTest, OneThatFailsMayHaveHappenedAndIsEndedAndTheRowWaitsForItsRequests) {
  bench_.Count(1, 1);
  bench_.pause_outcome_ = Outcome::kUnknown;
  Lock(PauseKind::kKeep);
  EXPECT_EQ(Told(), bench_.quiesce_) << "it may hold, and nothing is loaded";
  EXPECT_FALSE(IsLocked());
  EXPECT_EQ(bench_.TheRow().waits_for, "ENGINE_TIMEOUT: slow; now waits for requests in flight");
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_TRUE(IsWrittenDown()) << "it may reach the engine yet";
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 2);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_EQ(Told(), std::nullopt);
  EXPECT_EQ(pauses(), 1u) << "nor is it tried again";
  bench_.Count(1, 0);
  EXPECT_TRUE(IsLocked());
}

TEST_F(PauseTest, SomebodyElsesAnswersAreNone) {
  bench_.silent_ = {kPauseEffect};
  Lock(PauseKind::kKeep);
  for (const OpId op : {OpId{0}, OpId{9'999}}) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_TRUE(DoorKnows());
  EXPECT_EQ(Told(), bench_.quiesce_) << "it is asked for, and nothing is loaded";
  EXPECT_FALSE(IsLocked());
}

TEST_F(PauseTest, AnAnswerThatComesAfterItsEndChangesNothing) {
  bench_.silent_ = {kPauseEffect};
  Lock(PauseKind::kKeep);
  Unlock();
  ASSERT_EQ(bench_.resumes_, 1);
  // The operation of the pause is the one before that of the resume.
  for (OpId op = 1; op < 100; ++op) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_TRUE(Told().has_value());
  EXPECT_TRUE(IsWrittenDown()) << "it may have come after the resume";
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 2);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_EQ(Told(), std::nullopt);
}

TEST_F(PauseTest, AResumeIsAskedForUntilTheEngineSaysSo) {
  Lock(PauseKind::kKeep);
  bench_.resume_outcome_ = Outcome::kFailed;
  Unlock();
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
  EXPECT_FALSE(IsWrittenDown());
}

TEST_F(PauseTest, AnAnswerToAResumeIsWaitedForHoweverLateItIs) {
  Lock(PauseKind::kKeep);
  bench_.silent_ = {kResumeEffect};
  Unlock();
  bench_.silent_.clear();
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.resumes_, 0) << "the one under way";
  for (const OpId op : {OpId{0}, OpId{9'999}}) bench_.Tell(ResumeDone{op, Outcome::kOk});
  EXPECT_TRUE(DoorKnows()) << "somebody else's answer";
}

TEST_F(PauseTest, NothingIsResumedOnAnEngineThatDoesNotAnswer) {
  Lock(PauseKind::kKeep);
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  Unlock();
  bench_.Pass(5'000);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_TRUE(IsWrittenDown());
  bench_.See();
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(PauseTest, NorIsOnePausedThatDoesNotAnswerOrSleeps) {
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  bench_.Count(1, 1);
  Lock(PauseKind::kKeep);
  EXPECT_EQ(pauses(), 0u);
  EXPECT_FALSE(IsLocked());
  bench_.asleep_ = true;
  bench_.See();
  EXPECT_EQ(pauses(), 0u);
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_EQ(pauses(), 1u);
  EXPECT_TRUE(IsLocked());
}

TEST_F(PauseTest, ItEndsWithItsBoot) {
  Lock(PauseKind::kKeep);
  bench_.Reboot();
  EXPECT_EQ(bench_.resumes_, 0) << "the new one was never paused";
  EXPECT_FALSE(IsWrittenDown());
  bench_.Pass(500);
  EXPECT_FALSE(DoorKnows());
}

TEST_F(PauseTest, OneThatAProcessLeftBehindIsEndedByTheNextWhoeverAnsweredWhat) {
  Lock(PauseKind::kKeep);
  bench_.Stop();
  bench_.Start();
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_TRUE(IsWrittenDown()) << "its pause may come after that";
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 2);
  EXPECT_FALSE(IsWrittenDown());
  EXPECT_TRUE(IsLocked());
  EXPECT_EQ(pauses(), 1u) << "what is LOCKED needs no other";
}

TEST_F(PauseTest, ADrainWaitsForRequestsAndAsksTheEngineForNothing) {
  bench_.Count(1, 2);
  Lock(PauseKind::kDrain);
  EXPECT_FALSE(IsLocked());
  EXPECT_EQ(bench_.TheRow().waits_for, "requests in flight");
  bench_.Count(1, 1);
  EXPECT_FALSE(IsLocked());
  bench_.Count(1, 0);
  EXPECT_TRUE(IsLocked());
  EXPECT_FALSE(DoorKnows());
  EXPECT_EQ(bench_.TheRow().waits_for, "");
  EXPECT_EQ(pauses(), 0u);
  Unlock();
  EXPECT_EQ(bench_.resumes_, 0);
}

TEST_F(PauseTest, ADrainWaitsForNobodyWhoNamedTheVersion) {
  bench_.Count(1, 3, /*by_name=*/2);
  Lock(PauseKind::kDrain);
  EXPECT_FALSE(IsLocked());
  bench_.Count(1, 2, /*by_name=*/2);
  EXPECT_TRUE(IsLocked());
}

TEST_F(PauseTest, RequestsThatTheDoorDoesNotCountKeepADrainWaitingButNotThoseOfLeases) {
  bench_.Stop();
  bench_.counts_.clear();
  bench_.running_ = 1;  // of the process before
  bench_.Start();
  bench_.Desire(1, {1});
  Lock(PauseKind::kDrain);
  EXPECT_FALSE(IsLocked());
  bench_.running_ = 0;
  bench_.Pass(4'000);
  EXPECT_TRUE(IsLocked());

  Bench leased;
  leased.leased_ = {1};
  leased.Desire(1, {1});
  leased.quiesce_ = {PauseKind::kDrain, 10'000, false};
  leased.Desire(1, {1});
  leased.Row(RowMode::kHeld, 2);
  leased.Row(RowMode::kLocked, 2);
  EXPECT_EQ(leased.TheRow().mode, RowMode::kLocked);
}

TEST_F(PauseTest, NothingIsLoadedProbedOrUnloadedWhileItHolds) {
  bench_.Desire(2, {1, 2});
  Lock(PauseKind::kKeep, 600'000, 3);
  ASSERT_TRUE(IsLocked());
  const size_t loads = bench_.loads_.size(), probes = bench_.probes_.size();
  bench_.WantBeside(RowMode::kLocked, 3, {3});  // and no more 1 and 2
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_EQ(bench_.loads_.size(), loads);
  EXPECT_EQ(bench_.probes_.size(), probes);
  bench_.Desire(3, {3});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 2);
  EXPECT_EQ(bench_.loads_.size(), loads + 1);
}

TEST_F(PauseTest, ItDoesNotBeginBesideALoadOrAProbe) {
  for (const size_t effect : {kLoadEffect, kProbeEffect}) {
    Bench bench;
    bench.Desire(1, {1});
    bench.silent_ = {effect};
    bench.quiesce_ = {PauseKind::kAbort, 10'000, false};
    bench.WantBeside(RowMode::kHeld, 2, {1, 2});
    bench.WantBeside(RowMode::kLocked, 2, {1, 2});
    EXPECT_TRUE(bench.pauses_.empty()) << effect;
    EXPECT_EQ(bench.TheRow().mode, RowMode::kHeld);
  }
}

TEST_F(PauseTest, ItComesBeforeTheNextLoad) {
  bench_.silent_ = {kLoadEffect};
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.WantBeside(RowMode::kHeld, 2, {1, 2, 3});
  bench_.WantBeside(RowMode::kLocked, 2, {1, 2, 3});
  ASSERT_EQ(pauses(), 0u) << "2 is being loaded";
  bench_.silent_.clear();
  bench_.engine_[Bench::NameOf(2)] = "/" + Bench::NameOf(2).value;
  for (OpId op = 1; op < 100; ++op) bench_.Tell(LoadDone{op, Outcome::kOk, "", ""});
  EXPECT_EQ(pauses(), 1u);
  EXPECT_TRUE(IsLocked());
  EXPECT_EQ(bench_.StateOf(3), fleet::ResidencyState::kFetched);
}

TEST_F(PauseTest, ItComesBeforeTheNextUnload) {
  bench_.Desire(2, {1, 2, 3});
  bench_.silent_ = {kUnloadEffect};
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.WantBeside(RowMode::kHeld, 3, {3});
  bench_.WantBeside(RowMode::kLocked, 3, {3});
  ASSERT_EQ(pauses(), 0u) << "1 is being unloaded";
  bench_.silent_.clear();
  bench_.engine_.erase(Bench::NameOf(1));
  for (OpId op = 1; op < 100; ++op) bench_.Tell(UnloadDone{op, Outcome::kOk});
  EXPECT_EQ(pauses(), 1u);
  EXPECT_TRUE(IsLocked());
  EXPECT_TRUE(bench_.engine_.contains(Bench::NameOf(2)));
}

TEST_F(PauseTest, AWedgedEngineIsNotPausedButWaitedFor) {
  Bench sglang(fleet::EngineKind::kSglang);
  sglang.Desire(1, {1});
  sglang.unload_outcome_ = Outcome::kUnknown;
  sglang.Desire(2, {2});
  ASSERT_EQ(sglang.machine_->Observe().health, fleet::MemberHealth::kWedged);
  sglang.Count(2, 1);
  sglang.quiesce_ = {PauseKind::kRetract, 10'000, false};
  sglang.WantBeside(RowMode::kHeld, 3, {2});
  sglang.WantBeside(RowMode::kLocked, 3, {2});
  EXPECT_EQ(sglang.TheRow().waits_for, "requests in flight");
  EXPECT_TRUE(sglang.pauses_.empty());
  sglang.Count(2, 0);
  EXPECT_EQ(sglang.TheRow().mode, RowMode::kLocked);
}

}  // namespace
}  // namespace lorry::proxy
