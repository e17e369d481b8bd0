// SGLang, which says nothing of its memory and ends of what is asked twice, or under a request (memory.h).
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/memory_bench.h"

namespace lorry::proxy {
namespace {

using fleet::EngineKind;
using fleet::MemberHealth;
using fleet::PauseKind;
using ::testing::HasSubstr;

class SglangMemoryTest : public MemoryTest {
 protected:
  SglangMemoryTest() : MemoryTest(EngineKind::kSglang) {}
  // The first call of a process waits for two looks at the engine.
  uint64_t Release(const MemoryTags& tags) {
    const uint64_t call = MemoryTest::Release(tags);
    bench_.Pass(2'000);
    return call;
  }
};

TEST_F(SglangMemoryTest, WhatItWouldEndOfIsRefused) {
  EXPECT_EQ(Answered(Wake(kWeights)), "MEMORY_CONFLICT");
  EXPECT_EQ(Answered(Release(kAll)), "ok");
  EXPECT_EQ(Answered(Release(kCache)), "MEMORY_CONFLICT");
  EXPECT_EQ(Answered(Wake(kWeights)), "ok");
  EXPECT_EQ(Answered(Wake(kWeights)), "MEMORY_CONFLICT");
  EXPECT_EQ(passed(), 2u);
  EXPECT_EQ(Written(), (MemoryTags{"cuda_graph", "kv_cache"}));
}

TEST_F(SglangMemoryTest, ItSleepsOnHoweverOftenItIsSeen) {
  Release(kAll);
  bench_.Look(20);
  EXPECT_TRUE(IsShut());
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
  Wake(kAll);
  EXPECT_FALSE(IsShut());
  EXPECT_TRUE(bench_.Routed(1));
}

// As ASLEEP it would wait for a framework, whose calls are refused until the engine is started again.
TEST_F(SglangMemoryTest, OneWhoseRegistryHangsIsWedgedAlsoWhileItSleeps) {
  Release(kAll);
  bench_.Desire(0, {});
  bench_.unload_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Wake(kWeights)), "ok");
  bench_.Pass(20'000);
  ASSERT_TRUE(IsShut());
  EXPECT_EQ(Answered(Wake(kCache)), "ENGINE_WEDGED");
  EXPECT_EQ(Health(), MemberHealth::kWedged);
  EXPECT_THAT(Detail(), HasSubstr("needs a restart"));
}

TEST_F(SglangMemoryTest, WhoeverIsToldThatItIsAwakeFindsTheDoorOpen) {
  const uint64_t release = Release(kCache);
  EXPECT_TRUE(bench_.answered_asleep_.contains(release)) << "nobody is let in after the answer";
  const uint64_t wake = Wake(kCache);
  EXPECT_EQ(Answered(wake), "ok");
  EXPECT_FALSE(bench_.answered_asleep_.contains(wake));
}

// Requests that an earlier process let in, of no adapter that the engine has.
class OrphansTest : public SglangMemoryTest {
 protected:
  OrphansTest() { bench_.running_ = 2; }
};

TEST_F(OrphansTest, AReleaseWaitsUntilTheEngineShowsTwiceThatItHasNone) {
  const uint64_t call = Release(kAll);
  bench_.Pass(30'000);
  EXPECT_TRUE(IsShut());
  EXPECT_EQ(passed(), 0u);
  bench_.running_ = 0;
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(call), "waits") << "one may have arrived that it does not show yet";
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(call), "ok");
}

TEST_F(OrphansTest, OneInBetweenBeginsTheCountAnew) {
  const uint64_t call = Release(kAll);
  bench_.running_ = 0;
  bench_.Pass(1'000);
  bench_.running_ = 1;
  bench_.Pass(1'000);
  bench_.running_ = 0;
  bench_.Pass(1'000);
  EXPECT_EQ(Answered(call), "waits");
}

TEST_F(OrphansTest, WhatDoesNotEndIsWaitedForAMinute) {
  const uint64_t call = Release(kAll);
  bench_.Pass(57'000);
  EXPECT_EQ(Answered(call), "waits");
  bench_.Pass(2'000);
  EXPECT_EQ(Answered(call), "ENGINE_BUSY");
  EXPECT_FALSE(IsShut());
  EXPECT_EQ(Written(), MemoryTags());
  const uint64_t again = Release(kAll);
  EXPECT_EQ(Answered(again), "waits") << "a minute of its own";
  bench_.running_ = 0;
  bench_.Pass(2'000);
  EXPECT_EQ(Answered(again), "ok");
}

TEST_F(OrphansTest, TheNextInTurnHasAMinuteOfItsOwn) {
  const uint64_t first = MemoryTest::Release(kAll);
  const uint64_t next = MemoryTest::Release(kAll);
  bench_.Pass(61'000);
  EXPECT_EQ(Answered(first), "ENGINE_BUSY");
  EXPECT_EQ(Answered(next), "waits");
}

TEST_F(OrphansTest, SoDoOtherWeights) {
  const uint64_t call = Update();
  bench_.Pass(5'000);
  EXPECT_EQ(Answered(call), "waits");
  bench_.running_ = 0;
  bench_.Pass(2'000);
  EXPECT_EQ(Answered(call), "ok");
}

TEST_F(OrphansTest, UnderAFrameworksPauseTheyAreGivenAtOnce) {
  bench_.Call(PauseCall{PauseKind::kInPlace});
  EXPECT_EQ(Answered(Update()), "ok");
}

TEST_F(OrphansTest, AnEngineThatWasSeenAtRestIsNotAskedAgain) {
  bench_.running_ = 0;
  Release(kAll);
  Wake(kAll);
  bench_.running_ = 2;
  EXPECT_EQ(Answered(MemoryTest::Release(kAll)), "ok") << "the door knows of all that came since";
  Wake(kAll);
  bench_.Reboot();
  EXPECT_EQ(Answered(MemoryTest::Release(kAll)), "waits");
}

TEST_F(OrphansTest, WhoeverLeavesBeforeHasTakenNothingOfTheNextOnesTime) {
  const uint64_t call = Release(kAll);
  bench_.Pass(50'000);
  bench_.Tell(CallLeft{call});
  EXPECT_FALSE(IsShut());
  const uint64_t next = Release(kAll);
  bench_.Pass(20'000);
  EXPECT_EQ(Answered(next), "waits");
}

// Between the record of a call and the record of its answer a process may end at any time.
class DoubtTest : public SglangMemoryTest {
 protected:
  void EndsUnderWay() {
    bench_.Stop();
    bench_.Start();
    bench_.Desire(1, {1});
    bench_.pass_hangs_ = false;
  }
  void EveryCallThatItCouldEndOfIsRefused(const MemoryTags& tags) {
    const size_t before = passed();
    EXPECT_EQ(Answered(Wake(tags)), "MEMORY_CONFLICT");
    EXPECT_EQ(Answered(Release(tags)), "MEMORY_CONFLICT");
    EXPECT_EQ(Answered(Release(kAll)), "MEMORY_CONFLICT");
    EXPECT_EQ(passed(), before);
    EXPECT_TRUE(IsShut());
    EXPECT_THAT(Detail(), HasSubstr("must be started again"));
  }
  void AnotherLifeIsCertain() {
    bench_.Reboot();
    EXPECT_EQ(Written(), MemoryTags());
    EXPECT_TRUE(bench_.Routed(1));
    EXPECT_EQ(Answered(Release(kAll)), "ok");
    EXPECT_EQ(Doubted(), MemoryTags());
    EXPECT_EQ(Answered(Wake(kAll)), "ok");
  }
};

TEST_F(DoubtTest, ACallIsInDoubtFromBeforeItIsMadeUntilItsAnswer) {
  bench_.pass_hangs_ = true;
  Release(kAll);
  EXPECT_EQ(Doubted(), kAll);
  EXPECT_THAT(Detail(), HasSubstr("a framework released its cuda_graph, kv_cache, weights"));
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(Doubted(), MemoryTags());
  Wake(kWeights);
  EXPECT_EQ(Doubted(), kWeights);
  EXPECT_EQ(Written(), kAll);
  AnswerPassed(Outcome::kOk);
  EXPECT_EQ(Doubted(), MemoryTags());
  EXPECT_EQ(Written(), (MemoryTags{"cuda_graph", "kv_cache"}));
}

TEST_F(DoubtTest, AReleaseThatTheProcessDidNotOutlive) {
  bench_.pass_hangs_ = true;
  Release(kAll);
  EndsUnderWay();
  EveryCallThatItCouldEndOfIsRefused(kWeights);
  AnotherLifeIsCertain();
}

TEST_F(DoubtTest, AWakeUpThatTheProcessDidNotOutlive) {
  Release(kAll);
  bench_.pass_hangs_ = true;
  Wake(kCache);
  EndsUnderWay();
  EveryCallThatItCouldEndOfIsRefused(kCache);
  AnotherLifeIsCertain();
}

TEST_F(DoubtTest, ACallWithoutAnAnswer) {
  bench_.pass_outcome_ = Outcome::kUnknown;
  EXPECT_EQ(Answered(Release(kAll)), "WHY");
  bench_.pass_outcome_ = Outcome::kOk;
  EveryCallThatItCouldEndOfIsRefused(kWeights);
  AnotherLifeIsCertain();
  bench_.pass_outcome_ = Outcome::kBroken;
  EXPECT_EQ(Answered(Release(kWeights)), "WHY");
  bench_.pass_outcome_ = Outcome::kOk;
  EveryCallThatItCouldEndOfIsRefused(kWeights);
}

TEST_F(DoubtTest, WhatTheEngineRefusesIsAsItWas) {
  for (const Outcome outcome : {Outcome::kFailed, Outcome::kUnsent}) {
    bench_.pass_outcome_ = outcome;
    EXPECT_EQ(Answered(Release(kAll)), "WHY");
    EXPECT_EQ(Written(), MemoryTags());
    bench_.pass_outcome_ = Outcome::kOk;
    EXPECT_EQ(Answered(Release(kAll)), "ok");
    bench_.pass_outcome_ = outcome;
    EXPECT_EQ(Answered(Wake(kAll)), "WHY");
    EXPECT_EQ(Written(), kAll);
    EXPECT_EQ(Doubted(), MemoryTags());
    bench_.pass_outcome_ = Outcome::kOk;
    EXPECT_EQ(Answered(Wake(kAll)), "ok");
  }
}

TEST_F(DoubtTest, OtherPartsAreNotInDoubt) {
  Release(kCache);
  bench_.pass_hangs_ = true;
  Release(kWeights);
  EndsUnderWay();
  EXPECT_EQ(Answered(Wake(kCache)), "ok");
  EXPECT_EQ(Answered(Update()), "MEMORY_CONFLICT") << "the weights may be gone";
  EveryCallThatItCouldEndOfIsRefused(kWeights);
}

}  // namespace
}  // namespace lorry::proxy
