// Pauses that frameworks ask for: what holds them, what ends them, and what waits meanwhile
// (framework_calls.h).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::EngineKind;
using fleet::PauseKind;
using fleet::RowMode;

constexpr int64_t kDeadlineMs = 900'000;

class FrameworkCallsTest : public ::testing::Test {
 protected:
  FrameworkCallsTest() { bench_.Desire(1, {1}); }
  uint64_t Pause(PauseKind kind = PauseKind::kKeep, bool flush = false) {
    return bench_.Call(PauseCall{kind, flush});
  }
  uint64_t Continue() { return bench_.Call(ContinueCall{}); }
  // "ok", "waits", or the reason.
  std::string Answered(uint64_t call) const {
    const auto it = bench_.answered_.find(call);
    if (it == bench_.answered_.end()) return "waits";
    return it->second.outcome == Outcome::kOk ? "ok" : it->second.reason;
  }
  bool Holds() const { return bench_.machine_->framework_pauses().holds; }
  bool IsPaused() const { return bench_.machine_->door_table().paused; }
  std::optional<Tick> WrittenUntil() const {
    const auto it = bench_.records_.find("paused");
    if (it == bench_.records_.end()) return std::nullopt;
    return std::get<PausedRecord>(it->second).framework_until;
  }
  std::string Detail() const { return bench_.machine_->Observe().health_detail; }
  size_t pauses() const { return bench_.pauses_.size(); }

  Bench bench_;
};

TEST_F(FrameworkCallsTest, ThePauseIsTheEnginesAndLastsUntilItIsContinued) {
  const uint64_t pause = Pause(PauseKind::kAbort, true);
  EXPECT_EQ(Answered(pause), "ok");
  ASSERT_EQ(pauses(), 1u);
  EXPECT_EQ(bench_.pauses_[0].kind, PauseKind::kAbort);
  EXPECT_TRUE(bench_.pauses_[0].flush);
  EXPECT_EQ(bench_.pauses_[0].deadline_ms, kDeadlineMs);
  EXPECT_TRUE(Holds());
  EXPECT_THAT(Detail(), ::testing::HasSubstr("a framework paused the engine"));
  EXPECT_EQ(bench_.sent_.health, fleet::MemberHealth::kReady);
  EXPECT_TRUE(bench_.sent_.paused.has_value()) << "nobody is blamed for what is not loaded";
  bench_.Pass(100'000);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_EQ(Answered(Continue()), "ok");
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(Holds());
  EXPECT_EQ(WrittenUntil(), std::nullopt);
  EXPECT_EQ(Detail(), "");
  bench_.Pass(500);
  EXPECT_FALSE(IsPaused());
}

TEST_F(FrameworkCallsTest, NewRequestsWaitForItsEndAtTheDoor) {
  const auto held_ms = [&] { return bench_.machine_->door_table().framework_pause_ms; };
  EXPECT_EQ(held_ms(), 0u);
  bench_.silent_ = {kPauseEffect};
  Pause();
  EXPECT_EQ(held_ms(), kDeadlineMs) << "before the engine has answered";
  bench_.silent_.clear();
  bench_.Stop();
  bench_.Start();
  EXPECT_EQ(held_ms(), kDeadlineMs) << "whichever process of the proxy";
  Continue();
  EXPECT_EQ(held_ms(), 0u);
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Pass(2'000);
  bench_.Row(RowMode::kHeld, 2);
  bench_.Row(RowMode::kLocked, 2);
  EXPECT_TRUE(IsPaused());
  EXPECT_EQ(held_ms(), 0u) << "of Lorry's own, rows say who waits";
}

TEST_F(FrameworkCallsTest, NobodyWaitsForItsEndOnceItIsOver) {
  const auto held_ms = [&] { return bench_.machine_->door_table().framework_pause_ms; };
  bench_.silent_ = {kTableEffect, kListEffect, kResumeEffect};  // what would step the machine again
  Pause();
  ASSERT_EQ(held_ms(), kDeadlineMs);
  bench_.Reboot();
  EXPECT_EQ(held_ms(), 0u) << "the new boot is not paused";
  Pause();
  ASSERT_EQ(held_ms(), kDeadlineMs);
  bench_.Pass(kDeadlineMs);
  EXPECT_EQ(held_ms(), 0u) << "its time is over";
}

TEST_F(FrameworkCallsTest, IsWrittenDownBeforeTheEngineHearsOfIt) {
  bench_.silent_ = {kPauseEffect};
  const uint64_t pause = Pause();
  EXPECT_EQ(WrittenUntil(), bench_.now() + kDeadlineMs);
  EXPECT_EQ(Answered(pause), "waits");
}

TEST_F(FrameworkCallsTest, NothingIsLoadedMeanwhile) {
  Pause();
  const size_t loads = bench_.loads_.size();
  bench_.Desire(2, {2});
  bench_.Pass(5'000);
  EXPECT_EQ(bench_.loads_.size(), loads);
  EXPECT_EQ(bench_.StateOf(2), fleet::ResidencyState::kFetched);
  Continue();
  bench_.Pass(5'000);
  EXPECT_EQ(bench_.loads_.size(), loads + 1);
}

TEST_F(FrameworkCallsTest, WaitsForALoadThatIsUnderWayAndLetsNoOtherBegin) {
  bench_.silent_ = {kLoadEffect};
  bench_.Desire(2, {1, 2, 3});
  const uint64_t pause = Pause();
  bench_.Pass(3'000);
  EXPECT_EQ(pauses(), 0u);
  EXPECT_EQ(Answered(pause), "waits");
  bench_.silent_.clear();
  for (OpId op = 1; op < 100; ++op) bench_.Tell(LoadDone{op, Outcome::kFailed, "LOAD_REFUSED", ""});
  EXPECT_EQ(pauses(), 1u);
  EXPECT_EQ(Answered(pause), "ok");
}

TEST_F(FrameworkCallsTest, TheProxyEndsItAtItsDeadlineAndSaysSo) {
  Pause();
  bench_.Pass(kDeadlineMs - 500);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_TRUE(bench_.wake_at_.has_value() && *bench_.wake_at_ <= bench_.now() + 500);
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(Holds());
  EXPECT_EQ(bench_.machine_->framework_pauses().overdue, 1u);
  EXPECT_THAT(Detail(), ::testing::HasSubstr("ended a framework's pause after 900 s"));
  EXPECT_EQ(Answered(Continue()), "ok") << "as the engine answers one that it does not need";
  EXPECT_EQ(Detail(), "");
}

TEST_F(FrameworkCallsTest, NeitherASessionNorADrainNorAFlipEndsIt) {
  Pause();
  bench_.Tell(SessionDown{});
  bench_.Tell(SessionUp{});
  bench_.Desire(2, {1});
  bench_.Row(RowMode::kHeld, 3);
  bench_.Row(RowMode::kOpen, 2);
  bench_.Tell(DoorDrains{});
  bench_.Pass(60'000);
  EXPECT_EQ(bench_.resumes_, 0);
  EXPECT_TRUE(Holds());
}

TEST_F(FrameworkCallsTest, ARowThatWantsAPauseWaitsForItsTurn) {
  Pause();
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Row(RowMode::kHeld, 2);
  bench_.Row(RowMode::kLocked, 2);
  EXPECT_EQ(bench_.TheRow().mode, RowMode::kHeld);
  EXPECT_EQ(pauses(), 1u);
  Continue();
  bench_.Pass(500);
  EXPECT_EQ(pauses(), 2u);
  EXPECT_EQ(bench_.TheRow().mode, RowMode::kLocked);
  EXPECT_FALSE(Holds());
}

TEST_F(FrameworkCallsTest, WaitsUntilLorrysOwnIsOver) {
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Row(RowMode::kHeld, 2);
  bench_.Row(RowMode::kLocked, 2);
  ASSERT_EQ(pauses(), 1u);
  EXPECT_EQ(Answered(Continue()), "ok") << "the engine goes on by itself";
  EXPECT_EQ(bench_.resumes_, 0) << "a row needs it";
  const uint64_t pause = Pause(PauseKind::kAbort);
  EXPECT_EQ(Answered(pause), "waits");
  bench_.Row(RowMode::kOpen, 1);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_EQ(Answered(pause), "ok");
  EXPECT_EQ(bench_.pauses_.back().kind, PauseKind::kAbort);
  bench_.Pass(60'000);
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(FrameworkCallsTest, OneThatCouldNotBePausedIsToldSoAndGoesOn) {
  bench_.pause_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Pause()), "ENGINE_TIMEOUT");
  EXPECT_FALSE(Holds());
  EXPECT_EQ(WrittenUntil(), 0) << "a process that begins ends it";
  EXPECT_EQ(bench_.resumes_, 1);
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 2) << "it may have come after the first";
  EXPECT_EQ(WrittenUntil(), std::nullopt);
}

TEST_F(FrameworkCallsTest, AskedAgainTheEngineIsAskedAgain) {
  Pause(PauseKind::kAbort);
  bench_.Pass(100'000);
  EXPECT_EQ(Answered(Pause(PauseKind::kKeep)), "ok");
  ASSERT_EQ(pauses(), 2u);
  EXPECT_EQ(bench_.pauses_[1].kind, PauseKind::kKeep);
  EXPECT_EQ(WrittenUntil(), bench_.now() + kDeadlineMs) << "somebody still wants it";
  bench_.pause_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Pause(PauseKind::kWait)), "ENGINE_TIMEOUT");
  EXPECT_TRUE(Holds()) << "as it did before";
  EXPECT_EQ(bench_.resumes_, 0);
  const uint64_t go_on = Continue();
  EXPECT_EQ(Answered(go_on), "waits") << "the pause without an answer may come yet";
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.resumes_, 2);
  EXPECT_EQ(Answered(go_on), "ok");
}

TEST_F(FrameworkCallsTest, SglangIsNotAskedForAnAbortThatWouldNeverEnd) {
  Bench sglang(EngineKind::kSglang);
  sglang.Call(PauseCall{PauseKind::kInPlace});
  const uint64_t abort = sglang.Call(PauseCall{PauseKind::kAbort});
  EXPECT_EQ(sglang.answered_.at(abort).reason, "PAUSE_CONFLICT");
  EXPECT_EQ(sglang.answered_.at(abort).outcome, Outcome::kRefused);
  EXPECT_EQ(sglang.pauses_.size(), 1u);
  sglang.Call(ContinueCall{});
  sglang.Call(PauseCall{PauseKind::kAbort});
  sglang.Call(PauseCall{PauseKind::kInPlace});
  EXPECT_EQ(sglang.pauses_.size(), 3u) << "AReaL's order";
}

TEST_F(FrameworkCallsTest, AContinueThatNothingIsKnownOfIsPassedOn) {
  EXPECT_EQ(Answered(Continue()), "ok");
  EXPECT_EQ(bench_.resumes_, 1) << "somebody may have paused it without Lorry";
  EXPECT_EQ(WrittenUntil(), std::nullopt);
}

TEST_F(FrameworkCallsTest, AContinueIsAnsweredOnceTheEngineSaysSo) {
  Pause();
  bench_.resume_outcome_ = Outcome::kFailed;
  const uint64_t go_on = Continue();
  bench_.Pass(3'000);
  EXPECT_EQ(Answered(go_on), "waits");
  bench_.resume_outcome_ = Outcome::kOk;
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(go_on), "ok");
}

TEST_F(FrameworkCallsTest, CallsAreTakenInTheirOrder) {
  bench_.silent_ = {kPauseEffect};
  const uint64_t pause = Pause(PauseKind::kWait);
  const uint64_t go_on = Continue();
  EXPECT_EQ(Answered(go_on), "waits");
  for (OpId op = 1; op < 100; ++op) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_EQ(Answered(pause), "ok");
  EXPECT_EQ(Answered(go_on), "ok");
  EXPECT_FALSE(Holds());
}

TEST_F(FrameworkCallsTest, AnEngineThatStillDrainsIsNotToldToGoOn) {
  bench_.silent_ = {kPauseEffect};
  bench_.Tell(CallLeft{Pause(PauseKind::kWait)});
  const uint64_t go_on = Continue();
  bench_.Pass(60'000);
  EXPECT_EQ(bench_.resumes_, 0);
  for (OpId op = 1; op < 100; ++op) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_EQ(Answered(go_on), "ok");
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(FrameworkCallsTest, ACallerThatLeavesGetsNoPauseThatHasNotBegunButWhatBeganGoesOn) {
  bench_.silent_ = {kPauseEffect};
  const uint64_t first = Pause(), second = Pause(), third = Continue();
  bench_.Tell(CallLeft{second});
  bench_.Tell(CallLeft{third});
  bench_.Tell(CallLeft{first});
  EXPECT_TRUE(Holds());
  for (OpId op = 1; op < 100; ++op) bench_.Tell(PauseDone{op, Outcome::kOk});
  EXPECT_EQ(Answered(first), "waits") << "nobody does";
  EXPECT_FALSE(Holds()) << "it was to go on";
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(FrameworkCallsTest, ANewBootEndsItAndAnswersWhoeverWaits) {
  Pause();
  bench_.silent_ = {kPauseEffect};
  const uint64_t again = Pause();
  bench_.Reboot();
  EXPECT_EQ(Answered(again), "ENGINE_RESTARTED");
  EXPECT_FALSE(Holds());
  EXPECT_EQ(WrittenUntil(), std::nullopt);
  EXPECT_EQ(bench_.resumes_, 0);
  bench_.silent_ = {kResumeEffect};
  Pause();
  for (OpId op = 1; op < 200; ++op) bench_.Tell(PauseDone{op, Outcome::kOk});
  const uint64_t go_on = Continue();
  bench_.boot_ = BootId("boot3");
  bench_.See();
  EXPECT_EQ(Answered(go_on), "ok") << "it is not paused";
}

TEST_F(FrameworkCallsTest, ARestartedProxyKeepsItUntilItsDeadline) {
  Pause();
  bench_.Pass(10'000);
  bench_.Stop();
  bench_.Start();
  EXPECT_TRUE(Holds());
  EXPECT_EQ(bench_.resumes_, 0);
  bench_.Pass(kDeadlineMs - 10'500);
  EXPECT_EQ(bench_.resumes_, 0);
  bench_.Pass(500);
  EXPECT_EQ(bench_.resumes_, 1);
  EXPECT_FALSE(Holds());
}

TEST_F(FrameworkCallsTest, NeverLongerThanADeadlineThoughTheMachinesClockBeganAnew) {
  Pause();
  auto& record = std::get<PausedRecord>(bench_.records_.at("paused"));
  record.framework_until += 1'000'000'000;
  bench_.Stop();
  bench_.Start();
  bench_.Pass(kDeadlineMs);
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(FrameworkCallsTest, AProxyThatDiesWhileItContinuesLetsItGoOnWhenItIsBack) {
  Pause();
  bench_.silent_ = {kResumeEffect};
  Continue();
  EXPECT_EQ(WrittenUntil(), 0);
  bench_.Stop();
  bench_.silent_.clear();
  bench_.Start();
  EXPECT_FALSE(Holds());
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(FrameworkCallsTest, WhereNoEngineAnswersItIsSaidAtOnce) {
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  EXPECT_EQ(Answered(Pause()), "ENGINE_UNREACHABLE");
  EXPECT_EQ(Answered(Continue()), "ENGINE_UNREACHABLE");
  bench_.See();
  Pause();
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  const uint64_t go_on = Continue();
  EXPECT_EQ(Answered(go_on), "waits") << "it must not be left paused";
  bench_.Pass(1'000);
  bench_.See();
  EXPECT_EQ(Answered(go_on), "ok");
}

}  // namespace
}  // namespace lorry::proxy
