// Memory that frameworks release at the door, and weights that they change: what waits, what is
// believed afterwards, and what a restart of the proxy keeps (memory.h).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/memory_bench.h"

namespace lorry::proxy {
namespace {

using fleet::MemberHealth;
using fleet::PauseKind;
using ::testing::HasSubstr;

// --- a framework that releases the memory at the door

TEST_F(MemoryTest, TheCallIsPassedOnceWhatRunsHasEnded) {
  bench_.Count(1, 2);
  const uint64_t call = Release();
  EXPECT_TRUE(IsShut()) << "nobody else comes in";
  EXPECT_EQ(Answered(call), "waits");
  bench_.Pass(5'000);
  EXPECT_EQ(passed(), 0u);
  bench_.Count(1, 0);
  ASSERT_EQ(passed(), 1u);
  EXPECT_EQ(bench_.passed_[0].ticket, call);
  EXPECT_EQ(bench_.passed_[0].boot, bench_.boot_);
  EXPECT_EQ(Answered(call), "ok");
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
  EXPECT_THAT(Detail(), HasSubstr("a framework released its kv_cache, weights"));
  EXPECT_FALSE(bench_.Routed(1));
}

// Nothing is loaded meanwhile, so no sync may wait for it.
TEST_F(MemoryTest, TheFleetKnowsFromTheMomentOnThatTheDoorIsShut) {
  const auto told = [&] { return bench_.sent_.health_detail; };
  bench_.Count(1, 1);
  const uint64_t release = Release();
  EXPECT_EQ(bench_.sent_.health, MemberHealth::kAsleep);
  EXPECT_THAT(told(), HasSubstr("call to release memory waits"));
  bench_.Tell(CallLeft{release});
  EXPECT_EQ(bench_.sent_.health, MemberHealth::kReady);
  EXPECT_EQ(told(), "");
  Update();
  EXPECT_EQ(bench_.sent_.health, MemberHealth::kAsleep);
  EXPECT_THAT(told(), HasSubstr("call to change weights waits"));
  bench_.pass_hangs_ = true;
  bench_.Count(1, 0);
  EXPECT_EQ(bench_.sent_.health, MemberHealth::kAsleep);
  EXPECT_THAT(told(), HasSubstr("gives the engine other weights"));
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(bench_.sent_.health, MemberHealth::kReady);
}

TEST_F(MemoryTest, RequestsThatAnEarlierProcessLetInAreWaitedFor) {
  bench_.running_ = 9;
  bench_.Stop();
  bench_.Start();
  bench_.Desire(1, {1});
  const uint64_t call = Release();
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(call), "waits") << "SGLang ends of memory that is released under a request";
  bench_.Pass(10'000);
  EXPECT_EQ(Answered(call), "ok");
}

TEST_F(MemoryTest, TheDoorMustHaveHeardThatItIsShut) {
  bench_.silent_ = {kTableEffect};
  Release();
  bench_.Pass(5'000);
  EXPECT_EQ(passed(), 0u) << "some io_context may still admit";
  bench_.silent_.clear();
  bench_.Report();
  EXPECT_EQ(passed(), 1u);
}

TEST_F(MemoryTest, WaitsForALoadThatIsUnderWayAndLetsNoOtherBegin) {
  bench_.silent_ = {kLoadEffect};
  bench_.Desire(2, {1, 2, 3});
  const size_t before = loads();
  const uint64_t call = Release();
  bench_.Pass(3'000);
  EXPECT_EQ(Answered(call), "waits");
  for (OpId op = 1; op < 400; ++op) bench_.Tell(LoadDone{op, Outcome::kFailed, "WHY", ""});
  EXPECT_EQ(Answered(call), "ok");
  EXPECT_EQ(loads(), before);
}

TEST_F(MemoryTest, WhoeverLeavesBeforeItBeganOpensTheDoorAgain) {
  bench_.Count(1, 1);
  const uint64_t call = Release();
  bench_.Tell(CallLeft{call});
  EXPECT_FALSE(IsShut());
  bench_.Count(1, 0);
  EXPECT_EQ(passed(), 0u);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, IsWrittenDownBeforeTheEngineHearsOfIt) {
  bench_.pass_hangs_ = true;
  Release();
  EXPECT_EQ(Written(), (MemoryTags{"kv_cache", "weights"}));
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
}

TEST_F(MemoryTest, OneThatTheEngineRefusesLeavesItAwake) {
  bench_.pass_outcome_ = Outcome::kFailed;
  EXPECT_EQ(Answered(Release()), "WHY");
  EXPECT_EQ(Written(), MemoryTags());
  EXPECT_FALSE(IsShut());
  EXPECT_TRUE(bench_.Routed(1)) << "probed once more";
}

TEST_F(MemoryTest, OneWithoutAnAnswerMayHaveHappened) {
  bench_.pass_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Release()), "WHY");
  EXPECT_EQ(Written(), (MemoryTags{"kv_cache", "weights"}));
  EXPECT_TRUE(IsShut());
}

TEST_F(MemoryTest, TheProxyNeverWakesItAndNothingIsAskedOfItMeanwhile) {
  Release();
  const size_t before = probes();
  bench_.asleep_ = true;
  bench_.Desire(2, {1, 2});
  for (int hour = 0; hour < 3; ++hour) {
    bench_.Wait(3'600'000);
    bench_.Look(2);
    bench_.Pass(2'000);
  }
  EXPECT_EQ(passed(), 1u);
  EXPECT_EQ(probes(), before);
  EXPECT_EQ(loads(), 1u);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
}

TEST_F(MemoryTest, AwakeWhatIsWantedIsServedAgain) {
  Release();
  bench_.engine_.clear();
  bench_.Desire(2, {2});
  EXPECT_EQ(Answered(Wake(kWeights)), "ok");
  EXPECT_EQ(Written(), kCache);
  EXPECT_TRUE(IsShut());
  EXPECT_EQ(loads(), 1u);
  EXPECT_EQ(Answered(Wake(kCache)), "ok");
  EXPECT_EQ(Written(), MemoryTags());
  EXPECT_FALSE(IsShut());
  EXPECT_TRUE(bench_.Routed(2));
  EXPECT_EQ(Health(), MemberHealth::kReady);
}

TEST_F(MemoryTest, WhatItSaidOfItsSleepIsOverWhenItWasWoken) {
  Release();
  bench_.asleep_ = true;
  bench_.See();
  EXPECT_EQ(Answered(Wake(kWeights)), "ok");
  EXPECT_TRUE(IsShut()) << "not all of it is back";
  const OpId before = bench_.passed_op_;
  const uint64_t wake = Wake(kCache);
  EXPECT_EQ(Answered(wake), "ok");
  EXPECT_FALSE(IsShut()) << "whoever was told so asks at once";
  EXPECT_FALSE(bench_.answered_asleep_.contains(wake))
      << "and may do so before the door hears of it";
  EXPECT_TRUE(bench_.Routed(1));
  for (int look = 0; look < 3; ++look) bench_.See(before);
  EXPECT_FALSE(IsShut()) << "these looks began before it was woken";
  bench_.See();
  EXPECT_TRUE(IsShut()) << "somebody put it to sleep again, without this door";
}

TEST_F(MemoryTest, ALookThatBeganBeforeTheReleaseDoesNotEndIt) {
  Release();
  for (int look = 0; look < 3; ++look) bench_.See(0);
  EXPECT_TRUE(IsShut());
  EXPECT_EQ(Written(), (MemoryTags{"kv_cache", "weights"}));
}

TEST_F(MemoryTest, ACallThatNeverLeftHidesNoSleepFromLooks) {
  const OpId before = bench_.passed_op_;
  bench_.pass_outcome_ = Outcome::kUnsent;
  Release();
  EXPECT_FALSE(IsShut());
  bench_.asleep_ = true;
  bench_.See(before);
  EXPECT_TRUE(IsShut()) << "somebody put it to sleep without this door";
}

TEST_F(MemoryTest, WhoWakesPartOfWhatSleepsDoesNotWakeIt) {
  Release();
  bench_.asleep_ = true;
  bench_.See();
  Wake(kCache);
  EXPECT_TRUE(IsShut());
  Wake(kCache);
  EXPECT_TRUE(IsShut());
}

TEST_F(MemoryTest, ALifesNumbersDoNotJudgeLooksAtTheNext) {
  Release();
  Wake();
  bench_.passed_op_ = 0;
  bench_.Reboot();
  bench_.asleep_ = true;
  bench_.See();
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
}

TEST_F(MemoryTest, AWakeUpWithoutAnAnswerLeavesItAsleep) {
  Release();
  bench_.pass_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Wake()), "WHY");
  EXPECT_TRUE(IsShut());
  EXPECT_EQ(Written(), (MemoryTags{"kv_cache", "weights"}));
}

TEST_F(MemoryTest, AnEngineThatSaysTwiceThatItIsAwakeWasWokenByOthers) {
  Release();
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_TRUE(IsShut()) << "it may have been asked before it slept";
  bench_.See();
  EXPECT_FALSE(IsShut());
  EXPECT_EQ(Written(), MemoryTags());
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, NoLookCountsWhileItIsBeingAsked) {
  bench_.pass_hangs_ = true;
  Release();
  bench_.Look(5);
  EXPECT_TRUE(IsShut());
}

TEST_F(MemoryTest, ARestartedProxyKnowsThatItSleeps) {
  Release();
  bench_.Stop();
  bench_.asleep_ = true;
  bench_.Start();
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
  const size_t before = probes();
  bench_.Desire(1, {1});
  bench_.Pass(20'000);
  EXPECT_EQ(probes(), before);
  EXPECT_EQ(Answered(bench_.Call(WakeCall{{"kv_cache", "weights"}})), "ok");
  bench_.asleep_ = false;
  bench_.See();
  bench_.Pass(10'000);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, AnotherLifeOfTheEngineIsAwake) {
  Release();
  bench_.Reboot();
  EXPECT_EQ(Written(), MemoryTags());
  EXPECT_FALSE(IsShut());
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, OneThatDiesOfTheCallAnswersIt) {
  bench_.pass_hangs_ = true;
  const uint64_t call = Release();
  bench_.Reboot();
  EXPECT_EQ(Answered(call), "ENGINE_RESTARTED");
  bench_.pass_hangs_ = false;
  EXPECT_EQ(Answered(Release()), "ok") << "the next one has its turn";
}

TEST_F(MemoryTest, ALaterCallWaitsForOneWhoseCallerHasLeft) {
  bench_.pass_hangs_ = true;
  const uint64_t first = Release();
  bench_.Tell(CallLeft{first});
  const uint64_t wake = Wake();
  EXPECT_EQ(passed(), 1u);
  EXPECT_EQ(Answered(wake), "waits");
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(passed(), 2u);
  EXPECT_EQ(Answered(wake), "ok");
}

// SGLang answers no look while it reads weights.
TEST_F(MemoryTest, WhoHasAnsweredIsAskedForTheNextCallThoughLooksHaveFailed) {
  bench_.pass_hangs_ = true;
  const uint64_t update = Update();
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(Answered(update), "ok");
  EXPECT_EQ(Answered(Update()), "waits");
  EXPECT_EQ(passed(), 2u);
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  AnswerPassed(Outcome::kBroken);
  EXPECT_EQ(Answered(Update()), "ENGINE_UNREACHABLE") << "no answer is no sign of life";
}

TEST_F(MemoryTest, WhereNoEngineAnswersItIsSaidAtOnce) {
  bench_.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  EXPECT_EQ(Answered(Release()), "ENGINE_UNREACHABLE");
  EXPECT_EQ(Answered(Wake()), "ENGINE_UNREACHABLE");
  EXPECT_EQ(Answered(Update()), "ENGINE_UNREACHABLE");
}

// --- with a framework's pause

TEST_F(MemoryTest, RequestsThatAPauseHasFrozenAreNotRobbedOfTheirMemory) {
  bench_.Count(1, 1);
  bench_.Call(PauseCall{PauseKind::kKeep});
  EXPECT_EQ(Answered(Release()), "PAUSE_CONFLICT");
  bench_.Count(1, 0);
  EXPECT_EQ(Answered(Release()), "ok");
}

TEST_F(MemoryTest, WhatAnAbortingPauseEndsIsWaitedFor) {
  bench_.Count(1, 1);
  bench_.Call(PauseCall{PauseKind::kAbort});
  const uint64_t call = Release();
  EXPECT_EQ(Answered(call), "waits");
  bench_.Count(1, 0);
  EXPECT_EQ(Answered(call), "ok");
}

// It came as the pause began, and is held until the engine goes on: that call would wait behind
// this one.
TEST_F(MemoryTest, WhatAnAbortingPauseHoldsIsNotWaitedForLong) {
  for (const PauseKind kind : {PauseKind::kAbort, PauseKind::kWait}) {
    bench_.Call(PauseCall{kind});
    bench_.Count(1, 1);
    const uint64_t call = Release();
    const uint64_t go_on = bench_.Call(ContinueCall{});
    EXPECT_EQ(Answered(call), "waits") << "for the last bytes of what the pause has ended";
    bench_.PassAsAsked(6'000);
    EXPECT_EQ(Answered(call), "PAUSE_CONFLICT");
    EXPECT_EQ(Answered(go_on), "ok");
    bench_.Count(1, 0);
  }
}

TEST_F(MemoryTest, TheDoorIsShutBeforeTheEngineIsAskedToPause) {
  bench_.machine_->Step(bench_.now(), CallMade{99, PauseCall{PauseKind::kAbort}});
  std::vector<size_t> order;
  for (const Effect& effect : bench_.machine_->TakeReady().effects) {
    if (effect.index() == kPauseEffect || effect.index() == kTableEffect)
      order.push_back(effect.index());
  }
  EXPECT_THAT(order, ::testing::ElementsAre(kTableEffect, kPauseEffect));
}

TEST_F(MemoryTest, ThePausesTimeWaitsWhileMemoryIsReleased) {
  bench_.Call(PauseCall{PauseKind::kAbort});
  Release();
  bench_.Pass(1'000'000);
  EXPECT_EQ(bench_.resumes_, 0);
  Wake();
  bench_.Pass(890'000);
  bench_.Stop();
  bench_.Start();
  bench_.Pass(5'000);
  EXPECT_EQ(bench_.resumes_, 0) << "it began anew, durably";
  bench_.Pass(5'500);
  EXPECT_EQ(bench_.resumes_, 1);
}

TEST_F(MemoryTest, LorrysOwnPauseIsOverBefore) {
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Row(fleet::RowMode::kHeld, 2);
  bench_.Row(fleet::RowMode::kLocked, 2);
  ASSERT_EQ(bench_.pauses_.size(), 1u);
  const uint64_t call = Release();
  EXPECT_EQ(Answered(call), "waits");
  bench_.Row(fleet::RowMode::kOpen, 1);
  EXPECT_EQ(Answered(call), "ok");
}

TEST_F(MemoryTest, AFrameworksOwnAdapterIsLoadedOnceTheWeightsAreBack) {
  bench_.files_["/a"] = "digest";
  Release();
  bench_.Tell(BindAsked{77, "mine", "/a"});
  bench_.Pass(2'000);
  EXPECT_EQ(bench_.bind_answers_.count(77), 0u);
  Wake(kWeights);
  ASSERT_EQ(bench_.bind_answers_.count(77), 1u) << "who releases the rest waits for it";
  EXPECT_EQ(bench_.bind_answers_.at(77).answer, BindAnswer::kDone);
  EXPECT_EQ(bench_.probes_.back(), fleet::ProbeKind::kPresence);
  const size_t before = probes();
  Wake(kCache);
  EXPECT_EQ(probes(), before + 2) << "it and the version, now that they can answer";
  EXPECT_NE(bench_.probes_.back(), fleet::ProbeKind::kPresence);
}

// --- vLLM

TEST_F(MemoryTest, VllmEndsWhatNobodyWaitsForByItself) {
  bench_.running_ = 2;
  EXPECT_EQ(Answered(Release()), "ok");
}

TEST_F(MemoryTest, VllmPassesOverWhatItIsAskedTwice) {
  bench_.pass_outcome_ = Outcome::kUnknown;
  Release();
  Wake();
  bench_.pass_outcome_ = Outcome::kOk;
  EXPECT_EQ(Answered(Release()), "ok");
  EXPECT_EQ(Answered(Wake()), "ok");
  EXPECT_FALSE(IsShut());
}

// --- weights

TEST_F(MemoryTest, OtherWeightsAreGivenOnceWhatRunsHasEndedAndAllIsProbedAgain) {
  bench_.Count(1, 1);
  const uint64_t call = Update();
  EXPECT_TRUE(IsUpdating());
  EXPECT_FALSE(IsShut());
  EXPECT_EQ(passed(), 0u);
  const size_t before = probes();
  bench_.pass_hangs_ = true;
  bench_.Count(1, 0);
  EXPECT_EQ(passed(), 1u);
  EXPECT_TRUE(IsUpdating());
  EXPECT_FALSE(bench_.Routed(1));
  bench_.Pass(10'000);
  EXPECT_EQ(probes(), before) << "not of weights that are half new";
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(Answered(call), "ok");
  EXPECT_FALSE(IsUpdating());
  EXPECT_EQ(probes(), before + 1);
  EXPECT_TRUE(bench_.Routed(1));
  EXPECT_EQ(Written(), MemoryTags());
}

TEST_F(MemoryTest, AnUpdateUnderWayIsNotKnownToTheNextProcessWhichProbesAnew) {
  bench_.pass_hangs_ = true;
  Update();
  ASSERT_TRUE(IsUpdating());
  const size_t before = probes();
  bench_.Stop();
  bench_.Start();
  bench_.Desire(1, {1});
  EXPECT_FALSE(IsUpdating());
  EXPECT_EQ(probes(), before + 1);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, UnderAFrameworksPauseTheyAreGivenToWhatIsFrozen) {
  bench_.Count(1, 1);
  bench_.Call(PauseCall{PauseKind::kKeep});
  EXPECT_EQ(Answered(Update()), "ok");
  EXPECT_FALSE(bench_.Routed(1));
  EXPECT_FALSE(IsUpdating()) << "who comes waits in the engine";
  const size_t before = probes();
  bench_.Call(ContinueCall{});
  bench_.Pass(1'000);
  EXPECT_EQ(probes(), before + 1);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, TheyAreGivenToAnEngineThatHasOnlyItsWeightsBack) {
  Release();
  Wake(kWeights);
  EXPECT_EQ(Answered(Update()), "ok");
  EXPECT_TRUE(IsShut());
  Wake(kCache);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, NothingIsUnloadedWhileTheyChange) {
  bench_.pass_hangs_ = true;
  Update();
  bench_.Desire(0, {2});
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_EQ(loads(), 1u);
  AnswerPassed(Outcome::kOk);
  bench_.Pass(2'000);
  EXPECT_EQ(bench_.unloads_, 1);
  EXPECT_EQ(loads(), 2u);
}

TEST_F(MemoryTest, NorIsTheEnginePausedByARow) {
  bench_.pass_hangs_ = true;
  Update();
  bench_.quiesce_ = {PauseKind::kKeep, 10'000, false};
  bench_.Row(fleet::RowMode::kHeld, 2);
  bench_.Row(fleet::RowMode::kLocked, 2);
  bench_.Pass(1'000);
  EXPECT_TRUE(bench_.pauses_.empty());
}

}  // namespace
}  // namespace lorry::proxy
