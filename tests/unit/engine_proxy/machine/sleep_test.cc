// Engines that say by themselves that they sleep: what is believed afterwards (memory.h).
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/memory_bench.h"

namespace lorry::proxy {
namespace {

using fleet::EngineKind;
using fleet::MemberHealth;
using fleet::ResidencyState;
using ::testing::HasSubstr;

TEST_F(MemoryTest, WhatWasLoadedIsBelievedOnceItWasProbedAwake) {
  ASSERT_TRUE(bench_.Routed(1));
  const size_t before = probes();
  bench_.asleep_ = true;
  bench_.See();
  EXPECT_EQ(Health(), MemberHealth::kAsleep);
  EXPECT_THAT(Detail(), HasSubstr("without this proxy"));
  EXPECT_FALSE(bench_.Routed(1));
  bench_.Pass(20'000);
  EXPECT_EQ(probes(), before) << "it could not answer";
  bench_.asleep_ = false;
  bench_.silent_ = {kProbeEffect};
  bench_.See();
  EXPECT_EQ(probes(), before);
  EXPECT_FALSE(bench_.Routed(1)) << "nobody has shown yet that it applies it";
  bench_.silent_.clear();
  bench_.Reboot();
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, WhatIsStillThereIsNotLoadedAgain) {
  const size_t before = probes();
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_TRUE(bench_.Routed(1));
  EXPECT_EQ(probes(), before + 1);
  EXPECT_EQ(loads(), 1u);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(MemoryTest, WhatIsNotBelievedYetKeepsItsSlot) {
  bench_.limits_.slots = 1;
  bench_.files_ = {{"/d/one", "1"}};
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.silent_ = {kListEffect};
  bench_.See();
  bench_.Tell(BindAsked{1, "lora_v1", "/d/one"});
  ASSERT_EQ(bench_.reads_, 1);
  EXPECT_EQ(loads(), 1u) << "the engine has no room beside what must stay";
  EXPECT_EQ(bench_.bind_answers_[1].reason, "NO_SLOT");
  bench_.silent_.clear();
  for (OpId op = 1; op < 50; ++op) bench_.Tell(Listed{op, Outcome::kOk, bench_.engine_});
  EXPECT_TRUE(bench_.Routed(1));
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(MemoryTest, WhatNobodyWantsLeavesHoweverOftenTheEngineSleeps) {
  bench_.engine_[Bench::NameOf(7)] = "/elsewhere";
  for (int second = 0; second < 20; ++second) {
    bench_.asleep_ = second % 2 == 1;
    bench_.Look(1);
  }
  EXPECT_EQ(bench_.unloads_, 1);
  EXPECT_FALSE(bench_.engine_.contains(Bench::NameOf(7)));
}

TEST_F(MemoryTest, NobodyLeavesForWhatHasItsSlot) {
  bench_.limits_.slots = 3;
  bench_.See();
  bench_.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};  // and may come to pass
  bench_.Desire(1, {0, 1});
  ASSERT_EQ(bench_.StateOf(0), ResidencyState::kFailed);
  bench_.limits_.slots = 2;
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.silent_ = {kListEffect};
  bench_.See();
  bench_.Pass(500);
  ASSERT_FALSE(bench_.Routed(1));
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(MemoryTest, WhatIsGoneIsLoadedAgainThoughAListOfItsSleepNamesIt) {
  bench_.asleep_ = true;
  bench_.See();
  bench_.Pass(10'000);
  bench_.engine_.clear();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_EQ(loads(), 2u);
  EXPECT_TRUE(bench_.Routed(1));
  EXPECT_EQ(bench_.TheRow().mode, fleet::RowMode::kOpen);
}

TEST_F(MemoryTest, WhatComesBackAsTheBaseModelIsUnloadedAndLoadedAgain) {
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.rule_ = fleet::ProbeMode::kDiffers;
  bench_.Desire(1, {1});
  bench_.compared_ = fleet::ProbeComparison{0, 0};
  bench_.silent_ = {kUnloadEffect};
  bench_.See();
  EXPECT_FALSE(bench_.Routed(1));
  EXPECT_EQ(bench_.FailureOf(1), fleet::Failure::kNone) << "nothing is said of the version";
  EXPECT_EQ(bench_.StateOf(1), ResidencyState::kUnloading);
  bench_.silent_.clear();
  bench_.compared_ = fleet::ProbeComparison{0.5, 0};
  bench_.engine_.clear();
  for (OpId op = 1; op < 400; ++op) bench_.Tell(UnloadDone{op, Outcome::kOk});
  EXPECT_EQ(loads(), 2u);
  EXPECT_TRUE(bench_.Routed(1));
}

TEST_F(MemoryTest, WhatNobodyCanTellFromTheBaseModelIsLoadedAgain) {
  bench_.compared_ = fleet::ProbeComparison{0, 0};  // too little to be seen
  bench_.Desire(2, {2});
  ASSERT_EQ(bench_.Told(2), "LOADED UNPROVEN");
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_EQ(loads(), 3u);
  EXPECT_EQ(bench_.Told(2), "LOADED UNPROVEN") << "it was loaded since the engine woke";
  bench_.Start();
  bench_.Desire(2, {2});
  bench_.Pass(5'000);
  EXPECT_EQ(loads(), 3u) << "what a restarted proxy finds did not sleep";
}

TEST_F(MemoryTest, ARestartedProxyKnowsWhatMayBeLost) {
  bench_.compared_ = fleet::ProbeComparison{0, 0};
  bench_.Desire(2, {2});
  ASSERT_EQ(loads(), 2u);
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.Start();
  bench_.Desire(2, {2});
  bench_.Pass(5'000);
  EXPECT_EQ(loads(), 3u);
  EXPECT_EQ(bench_.Told(2), "LOADED UNPROVEN");
}

TEST_F(MemoryTest, WhatFailsAfterItWasLoadedAgainHasFailedByItself) {
  bench_.rule_ = fleet::ProbeMode::kDiffers;
  bench_.Desire(1, {1});
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.compared_ = fleet::ProbeComparison{0, 0};
  bench_.See();
  EXPECT_EQ(loads(), 2u);
  EXPECT_EQ(bench_.FailureOf(1), fleet::Failure::kRefused);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(MemoryTest, AFailedOneThatIsGoneIsLoadedWithoutAnUnload) {
  bench_.leased_ = {1};  // and in use, so that it is not unloaded
  bench_.running_names_ = {Bench::NameOf(1)};
  bench_.Desire(1, {1});
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.probe_answer_ = ProbeDone{.outcome = Outcome::kFailed, .reason = "ENGINE_NAME_UNKNOWN"};
  bench_.See();
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.Told(1), "FAILED ENGINE_NAME_UNKNOWN");
  bench_.engine_.clear();
  bench_.probe_answer_.reset();
  bench_.Pass(6'000);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_EQ(bench_.Told(1), "LOADED");
}

TEST_F(MemoryTest, WhatIsLeasedMayBeAskedForUntilItsEngineIsAwake) {
  bench_.leased_ = {1};
  bench_.running_names_ = {Bench::NameOf(1)};
  bench_.Desire(1, {1});
  bench_.asleep_ = true;
  bench_.See();
  bench_.asleep_ = false;
  bench_.compared_ = fleet::ProbeComparison{0, 0};
  bench_.See();  // and it must be loaded anew
  bench_.asleep_ = true;
  bench_.See();
  bench_.running_names_ = std::set<EngineName>();
  bench_.Pass(10'000);
  bench_.running_names_ = {Bench::NameOf(1)};
  bench_.asleep_ = false;
  bench_.See();
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.unloads_, 0) << "it came by the lease, after the engine had shown none";
  bench_.compared_ = fleet::ProbeComparison{0.5, 0};
  bench_.running_names_ = std::set<EngineName>();
  bench_.Pass(10'000);
  EXPECT_EQ(bench_.unloads_, 1);
  EXPECT_EQ(bench_.Told(1), "LOADED");
}

TEST_F(MemoryTest, NoDeadlineOfALoadThatItSleptThroughCountsAgainstAnybody) {
  Bench sglang(EngineKind::kSglang);
  for (int i = 0; i < 4; ++i) {
    sglang.silent_ = {kLoadEffect};
    const uint64_t number = 2 + static_cast<uint64_t>(i);
    sglang.Desire(0, {number});
    ASSERT_EQ(sglang.StateOf(number), ResidencyState::kLoading);
    // One that tells, as nobody can put it to sleep through the door meanwhile.
    EngineSeen seen{sglang.boot_, sglang.limits_, "1", std::nullopt, true};
    seen.base_model = sglang.base_;
    sglang.Tell(seen);
    for (OpId op = 1; op < 400; ++op)
      sglang.Tell(LoadDone{op, Outcome::kUnknown, "ENGINE_TIMEOUT", ""});
    EXPECT_EQ(sglang.FailureOf(number), fleet::Failure::kNone);
    sglang.silent_.clear();
    seen.asleep = false;
    sglang.Tell(seen);
    sglang.Pass(1'000);
    EXPECT_EQ(sglang.Told(number), "LOADED");
  }
  EXPECT_EQ(sglang.machine_->Observe().health, MemberHealth::kReady) << "it does not hang";
}

TEST_F(MemoryTest, HoweverManyLoadsItSleptThroughItDoesNotHang) {
  Bench sglang(EngineKind::kSglang);
  sglang.silent_ = {kLoadEffect};
  sglang.Desire(0, {2});
  EngineSeen seen{sglang.boot_, sglang.limits_, "1", std::nullopt, true};
  seen.base_model = sglang.base_;
  for (uint32_t i = 0; i < 2 * Config().hung_loads_limit; ++i) {
    ASSERT_EQ(sglang.StateOf(2), ResidencyState::kLoading);
    seen.asleep = true;
    sglang.Tell(seen);
    for (OpId op = 1; op < 400; ++op)
      sglang.Tell(LoadDone{op, Outcome::kUnknown, "ENGINE_TIMEOUT", ""});
    seen.asleep = false;
    sglang.Tell(seen);
    sglang.Pass(10'000);
  }
  EXPECT_EQ(sglang.machine_->Observe().health, MemberHealth::kReady);
}

TEST_F(MemoryTest, NorOfAProbe) {
  bench_.silent_ = {kProbeEffect};
  bench_.Desire(2, {1, 2});
  ASSERT_EQ(bench_.StateOf(2), ResidencyState::kLoading);
  bench_.asleep_ = true;
  bench_.See();
  EXPECT_EQ(bench_.StateOf(2), ResidencyState::kFetched);
  for (OpId op = 1; op < 400; ++op)
    bench_.Tell(ProbeDone{.op = op, .outcome = Outcome::kUnknown, .reason = "ENGINE_TIMEOUT"});
  EXPECT_EQ(bench_.FailureOf(2), fleet::Failure::kNone);
  bench_.silent_.clear();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_TRUE(bench_.Routed(2));
}

TEST_F(MemoryTest, ALoadThatIsAnsweredInItsSleepIsProbedAfterwards) {
  bench_.silent_ = {kLoadEffect};
  bench_.Desire(2, {1, 2});
  bench_.asleep_ = true;
  bench_.See();
  const size_t before = probes();
  bench_.engine_[Bench::NameOf(2)] = "/" + Bench::NameOf(2).value;
  for (OpId op = 1; op < 400; ++op) bench_.Tell(LoadDone{op, Outcome::kOk});
  bench_.Pass(6'000);
  EXPECT_EQ(probes(), before);
  bench_.silent_.clear();
  bench_.asleep_ = false;
  bench_.See();
  EXPECT_TRUE(bench_.Routed(2));
  EXPECT_EQ(loads(), 1u) << "but for the one that was answered by hand";
}

// The engine may have lost it since it was loaded: that it answers as the base model is neither
// believed nor held against the version.
TEST_F(MemoryTest, ALoadThatIsJudgedAfterASleepIsMadeAgainWhereNobodyCanTell) {
  bench_.silent_ = {kLoadEffect};
  bench_.Desire(2, {2});
  bench_.silent_.clear();
  bench_.compared_ = fleet::ProbeComparison{0, 0};
  bench_.engine_[Bench::NameOf(2)] = "/" + Bench::NameOf(2).value;
  for (OpId op = 1; op < 400; ++op) bench_.Tell(LoadDone{op, Outcome::kBroken});
  ASSERT_EQ(bench_.StateOf(2), ResidencyState::kLoading) << "it may have happened";
  for (const bool asleep : {true, false}) {
    bench_.asleep_ = asleep;
    bench_.See();
  }
  bench_.Pass(Config().doubt_ms);
  bench_.See();  // that the engine lives ends the doubt
  const auto loads_of_2 = std::ranges::count(bench_.loads_, Bench::NameOf(2));
  EXPECT_EQ(loads_of_2, 1) << "but for the one whose connection broke";
  EXPECT_EQ(bench_.Told(2), "LOADED UNPROVEN");
}

}  // namespace
}  // namespace lorry::proxy
