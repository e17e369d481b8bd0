// What keeps wrong weights from being served: shapes against the engine's base model before a load,
// and the answer against the base model's after it.
#include <gmock/gmock.h>

#include <cmath>

#include "services/engine_proxy/machine/probe.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

const peft::Reference kReference = {{.tokens = {1, 2}, .logprobs = {-1}}};

TEST(BaseModel, WhatFitsIsComparedOnceAndLoaded) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.checks_, 1);
  bench.Reboot();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.checks_, 1) << "another boot of the same base model";
  EXPECT_EQ(bench.machine_->Observe().base_model, bench.base_);
}

TEST(BaseModel, WhatDoesNotFitNeverReachesTheEngine) {
  Bench bench;
  bench.trained_on_ = 96;
  bench.Desire(1, {1});
  bench.Pass(120'000);
  EXPECT_EQ(bench.Told(1), "FAILED BASE_MODEL_MISMATCH");
  EXPECT_EQ(bench.checks_, 1) << "asking again gives the same answer";
  EXPECT_TRUE(bench.engine_.empty());
  EXPECT_FALSE(bench.Routed(1));
}

TEST(BaseModel, WhatDoesNotFitIsComparedAgainWhenItIsWantedAnew) {
  Bench bench;
  bench.trained_on_ = 96;
  bench.silent_ = {kDeleteEffect};  // its directory is still there
  bench.Desire(0, {1});
  bench.Desire(0, {});
  bench.Desire(0, {1});
  EXPECT_NE(bench.Told(1), "LOADED");
  EXPECT_TRUE(bench.engine_.empty());
  Bench kept;
  kept.trained_on_ = 96;
  kept.Desire(1, {1, 2});
  kept.Desire(1, {2});
  kept.Desire(1, {1, 2});
  kept.Pass(1'000);
  EXPECT_TRUE(kept.engine_.empty());
}

TEST(BaseModel, AnotherBaseModelOfTheEngineIsAnotherQuestion) {
  Bench bench;
  bench.trained_on_ = 96;
  bench.Desire(1, {1});
  bench.base_->hidden_size = 96;
  bench.Reboot();
  EXPECT_EQ(bench.FailureOf(1), fleet::Failure::kNone) << "what is said is said of this base model";
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
  bench.base_->hidden_size = 128;
  bench.boot_ = BootId("boot3");
  bench.engine_.clear();
  bench.See();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "FAILED BASE_MODEL_MISMATCH");
  EXPECT_TRUE(bench.engine_.empty());
}

TEST(BaseModel, WhatARestartedProxyFindsOnTheEngineIsComparedToo) {
  Bench bench;
  bench.Desire(1, {1});
  ASSERT_TRUE(bench.Routed(1));
  bench.trained_on_ = 96;  // as if an earlier process had loaded it unchecked
  bench.Start();
  bench.Desire(1, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "FAILED BASE_MODEL_MISMATCH");
  EXPECT_FALSE(bench.Routed(1));
}

TEST(BaseModel, WithoutOneNothingIsLoadedUntilItIsKnown) {
  Bench bench;
  bench.base_.reset();
  bench.Reboot();
  bench.Desire(1, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "FETCHED");
  EXPECT_TRUE(bench.engine_.empty());
  bench.base_ = peft::BaseModel{.hidden_size = 128};
  bench.See();
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(BaseModel, AnOperatorMayVouchForEveryAdapter) {
  Bench bench;
  EngineSeen seen{bench.boot_, bench.limits_, "1"};
  seen.base_unchecked = true;
  bench.Tell(seen);
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.checks_, 0);
}

TEST(BaseModel, AnImageThatCannotBeReadIsLookedAtAgain) {
  Bench bench;
  bench.check_outcome_ = Outcome::kFailed;
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "FAILED DISK_FAILED");
  bench.check_outcome_ = Outcome::kOk;
  bench.Pass(2'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Probe, EachRuleAsksForWhatItJudges) {
  const fleet::VersionTraits trained{.relative_norm_ppm = 10'000};
  const fleet::VersionTraits fresh{.all_b_zero = true};
  using fleet::ProbeKind, fleet::ProbeMode;
  const auto kind_for = [](ProbeMode rule, const fleet::VersionTraits& traits,
                           const peft::Reference& reference = {}) {
    return QuestionFor({.rule = rule}, traits, reference).kind;
  };
  EXPECT_EQ(kind_for(ProbeMode::kPresence, trained), ProbeKind::kPresence);
  EXPECT_EQ(kind_for(ProbeMode::kToken, trained), ProbeKind::kToken);
  EXPECT_EQ(kind_for(ProbeMode::kDiffers, trained), ProbeKind::kCompare);
  EXPECT_EQ(kind_for(ProbeMode::kAuto, trained), ProbeKind::kCompare);
  EXPECT_EQ(kind_for(ProbeMode::kAuto, fresh), ProbeKind::kToken);
  EXPECT_EQ(kind_for(ProbeMode::kDiffers, fresh), ProbeKind::kToken)
      << "it answers as the base model does, and is right to";
  EXPECT_EQ(kind_for(ProbeMode::kAuto, trained, kReference), ProbeKind::kReference);
  EXPECT_EQ(kind_for(ProbeMode::kAuto, fresh, kReference), ProbeKind::kReference);
  EXPECT_EQ(kind_for(ProbeMode::kDiffers, trained, kReference), ProbeKind::kCompare);
  EXPECT_EQ(kind_for(ProbeMode::kToken, trained, kReference), ProbeKind::kToken);
  EXPECT_EQ(QuestionFor({}, trained, kReference).reference, kReference);
}

TEST(Probe, BeyondTheNoiseIsProof) {
  const auto judged = [](double difference, double noise, uint32_t ppm,
                         fleet::ProbeMode rule = fleet::ProbeMode::kAuto) {
    const ProbeVerdict verdict =
        JudgeProbe({.rule = rule}, {.relative_norm_ppm = ppm},
                   {.compared = fleet::ProbeComparison{difference, noise}}, 0);
    return verdict.passes ? verdict.reason : "FAILS " + verdict.reason;
  };
  EXPECT_EQ(judged(0.5, 0.01, 10'000), "");
  EXPECT_EQ(judged(0.5, 0.01, 0), "") << "whatever the trainer said";
  EXPECT_EQ(judged(0, 0, 10'000), "FAILS PROBE_SAME_AS_BASE");
  EXPECT_EQ(judged(0.015, 0.01, 10'000), "FAILS PROBE_SAME_AS_BASE") << "as two runs of the base";
  EXPECT_EQ(judged(0, 0, 0), "UNPROVEN") << "nobody knows that it must differ";
  EXPECT_EQ(judged(0, 0, 500), "UNPROVEN") << "bf16 may round it away";
  EXPECT_EQ(judged(0, 0, 0, fleet::ProbeMode::kDiffers), "FAILS PROBE_SAME_AS_BASE");
  EXPECT_EQ(JudgeProbe({}, {.relative_norm_ppm = 10'000}, {}, 0).reason, "UNPROVEN")
      << "an engine without log-probabilities";
}

TEST(Probe, AnAdapterThatIsAppliedToNothingIsNotServed) {
  Bench bench;
  bench.traits_.relative_norm_ppm = 10'000;
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "FAILED PROBE_SAME_AS_BASE");
  EXPECT_FALSE(bench.Routed(1));
}

// A finite adapter may be too large for the engine's fp16.
TEST(Probe, AnAdapterWhoseAnswersAreNoNumbersIsNotServed) {
  for (const fleet::ProbeMode rule : {fleet::ProbeMode::kAuto, fleet::ProbeMode::kDiffers}) {
    Bench bench;
    bench.rule_ = rule;
    bench.compared_ = fleet::ProbeComparison{std::nan(""), 0};
    bench.Desire(1, {1});
    EXPECT_EQ(bench.Told(1), "FAILED PROBE_NOT_FINITE");
    EXPECT_EQ(bench.FailureOf(1), fleet::Failure::kRefused);
    EXPECT_FALSE(bench.Routed(1));
  }
}

TEST(Probe, WhatIsNotProvenIsServedAndSaidToBe) {
  Bench bench;
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED UNPROVEN");
  EXPECT_TRUE(bench.Routed(1));
  EXPECT_EQ(bench.probes_, std::vector{fleet::ProbeKind::kCompare});
}

TEST(Probe, WhatDifferedPlainlyBeforeMustGoOnDoing) {
  const auto judged = [](double difference, double noise, uint32_t apart_ppm) {
    const ProbeVerdict verdict =
        JudgeProbe({}, {}, {.compared = fleet::ProbeComparison{difference, noise}}, apart_ppm);
    return verdict.passes ? verdict.reason : "FAILS " + verdict.reason;
  };
  EXPECT_EQ(judged(0, 0, 500'000), "FAILS PROBE_SAME_AS_BASE");
  EXPECT_EQ(judged(0, 0, 41), "FAILS PROBE_SAME_AS_BASE") << "four times what is taken for noise";
  EXPECT_EQ(judged(0, 0, 39), "UNPROVEN") << "that may have been noise";
  EXPECT_EQ(judged(0.1, 0.1, 500'000), "UNPROVEN") << "the engine is noisier than it was";
  EXPECT_EQ(judged(0.3, 0.1, 500'000), "");
}

TEST(Probe, HowFarAnAnswerIsFromTheBaseModels) {
  EXPECT_EQ(ApartPpm({.compared = fleet::ProbeComparison{0.5, 0.01}}), 500'000u);
  EXPECT_EQ(ApartPpm({.compared = fleet::ProbeComparison{0.015, 0.01}}), 0u) << "noise";
  EXPECT_EQ(ApartPpm({.compared = fleet::ProbeComparison{1e9, 0}}), UINT32_MAX);
  EXPECT_EQ(ApartPpm({}), 0u);
}

TEST(Probe, WhatDifferedBeforeIsNotServedAsTheBaseModel) {
  Bench bench;  // whose trainer does not say by how much it changes the model
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Reboot();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "FAILED PROBE_SAME_AS_BASE");
  EXPECT_FALSE(bench.Routed(1));
}

TEST(Probe, ARestartedProxyKnowsWhatDiffered) {
  Bench bench;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Start();
  bench.Desire(1, {1});
  bench.Pass(5'000);
  EXPECT_FALSE(bench.Routed(1));
}

TEST(Probe, AReferenceTellsWhetherTheEngineComputesWhatWasTrained) {
  const auto judged = [](double mean, std::optional<double> base, uint32_t limit_ppm,
                         std::optional<fleet::ProbeComparison> compared = {}) {
    const ProbeVerdict verdict =
        JudgeProbe({.gap_ppm = limit_ppm}, {.relative_norm_ppm = 10'000},
                   {.compared = compared, .gap = fleet::ReferenceGap{mean, 3 * mean, base}}, 0);
    return verdict.passes ? verdict.reason : "FAILS " + verdict.reason;
  };
  const fleet::ProbeComparison same{0, 0}, differs{0.5, 0};
  EXPECT_EQ(judged(0.001, 0.5, 100'000), "") << "though nothing was compared with the base model";
  EXPECT_EQ(judged(0.1, 0.5, 100'000), "") << "the limit itself is within it";
  EXPECT_EQ(judged(0.11, 0.5, 100'000, differs), "FAILS PROBE_GAP");
  EXPECT_EQ(judged(0.11, 0.5, 0, differs), "") << "only measured";
  EXPECT_EQ(judged(std::nan(""), {}, 100'000, differs), "FAILS PROBE_NOT_FINITE");
  EXPECT_EQ(judged(std::nan(""), 0.5, 0, differs), "FAILS PROBE_NOT_FINITE")
      << "nothing to measure";
  EXPECT_EQ(judged(0.04, 0.04, 100'000, same), "FAILS PROBE_SAME_AS_BASE")
      << "within the limit, because the adapter changes so little";
  EXPECT_EQ(judged(0.03, 0.04, 100'000, differs), "");
  EXPECT_EQ(judged(0.03, 0.04, 100'000), "UNPROVEN") << "as near to the base model";
  EXPECT_EQ(judged(0.001, {}, 100'000), "UNPROVEN") << "nobody knows how far the base model is";
  EXPECT_EQ(judged(0.001, {}, 100'000, differs), "");
}

TEST(Probe, OfAFreshAdapterTheReferenceIsTheBaseModels) {
  const auto judged = [](double mean) {
    const ProbeVerdict verdict =
        JudgeProbe({}, {.all_b_zero = true}, {.gap = fleet::ReferenceGap{mean, mean, 0.0}}, 0);
    return verdict.passes ? verdict.reason : "FAILS " + verdict.reason;
  };
  EXPECT_EQ(judged(0.001), "");
  EXPECT_EQ(judged(0.2), "FAILS PROBE_GAP");
}

TEST(Probe, TheGapIsToldWithTheVersion) {
  Bench bench;
  bench.reference_ = kReference;
  bench.gap_ = fleet::ReferenceGap{0.002, 0.03, 0.5};
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.GapOf(1), "2000 at most 30000");
  EXPECT_EQ(bench.sent_.residencies.at(0).gap, (fleet::ObservedGap{2'000, 30'000}));
  EXPECT_EQ(bench.probes_, std::vector{fleet::ProbeKind::kReference});
}

TEST(Probe, AnEngineThatComputesSomethingElseIsRefusedWithBothFigures) {
  Bench bench;
  bench.reference_ = kReference;
  bench.gap_ = fleet::ReferenceGap{0.43, 2.1, 0.5};
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "FAILED PROBE_GAP");
  EXPECT_EQ(bench.FailureOf(1), fleet::Failure::kRefused);
  EXPECT_THAT(bench.machine_->Observe().residencies.at(0).detail,
              testing::AllOf(testing::HasSubstr("0.43 from"), testing::HasSubstr("2.1 at most"),
                             testing::HasSubstr("probe_gap is 0.1")));
  EXPECT_FALSE(bench.Routed(1));
}

TEST(Probe, ThePolicysLimitIsTheOneThatCounts) {
  Bench bench;
  bench.reference_ = kReference;
  bench.gap_ = fleet::ReferenceGap{0.43, 2.1, 0.5};
  bench.gap_ppm_ = 0;
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.GapOf(1), "430000 at most 2100000");
}

TEST(Probe, AnotherBaseModelIsSaidThoughItIsServed) {
  Bench bench;
  bench.differences_ = "another revision";
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED BASE_MODEL_DIFFERS");
  EXPECT_TRUE(bench.Routed(1));
  bench.compared_.reset();
  bench.Reboot();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "LOADED UNPROVEN") << "the graver of the two";
}

TEST(Engine, WhyThereIsNoneIsTold) {
  Bench bench;
  bench.Tell(EngineLost{.ended = true, .why = "ENGINE_UNREACHABLE: start it"});
  EXPECT_EQ(bench.machine_->Observe().health_detail, "ENGINE_UNREACHABLE: start it");
}

// --- files that changed since they were proven

// A version whose files turn out broken after its load has ended like this.
void DesireOfBrokenFiles(Bench& bench, const LoadDone& load) {
  bench.load_answer_ = load;
  bench.hash_matches_ = false;
  bench.Desire(1, {1});
}
const LoadDone kLoadWithoutAnswer{0, Outcome::kUnknown, "ENGINE_TIMEOUT", ""};

TEST(Files, ThatAnEngineCouldNotLoadAreLookedAtAgain) {
  Bench bench;
  DesireOfBrokenFiles(bench, {0, Outcome::kFailed, "ENGINE_LOAD_FAILED", "truncated"});
  ASSERT_EQ(bench.Told(1), "FAILED ENGINE_LOAD_FAILED");
  ASSERT_EQ(bench.fetches_, 1);
  bench.load_answer_.reset();
  bench.Pass(60'000);
  EXPECT_EQ(bench.deletes_, 1);
  EXPECT_EQ(bench.fetches_, 2);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Files, ThatCannotBeReadAreLookedAtAgain) {
  Bench bench;
  bench.check_outcome_ = Outcome::kFailed;
  bench.hash_matches_ = false;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "FAILED DISK_FAILED");
  bench.check_outcome_ = Outcome::kOk;
  bench.Pass(60'000);
  EXPECT_EQ(bench.fetches_, 2);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

// The load got no answer, and may yet happen: that is not forgotten when the files turn out broken.
TEST(Files, ThatAnEngineMayYetReadAreNotDeletedByTheNextProcessEither) {
  Bench bench;
  DesireOfBrokenFiles(bench, kLoadWithoutAnswer);
  bench.silent_ = {kUnloadEffect, kTableEffect};  // whose answer would say that the load is over
  bench.Pass(60'000);
  ASSERT_EQ(bench.deletes_, 0);
  bench.Stop();
  bench.Start();
  bench.Desire(1, {1});
  bench.Pass(10'000);
  EXPECT_EQ(bench.deletes_, 0);
}

TEST(Files, ThatAnEngineMayYetReadAreFetchedAgainOnceItHasAnswered) {
  Bench bench;
  DesireOfBrokenFiles(bench, kLoadWithoutAnswer);
  bench.load_answer_.reset();
  bench.Pass(60'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.fetches_, 2);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Files, ThatAreWholeAreFetchedOnce) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kFailed, "ENGINE_LOAD_FAILED", "no memory"};
  bench.Desire(1, {1});
  bench.Pass(60'000);
  EXPECT_EQ(bench.fetches_, 1);
  EXPECT_EQ(bench.deletes_, 0);
}

// --- before anybody has said what is desired

TEST(Survivor, IsProbedAsItsPolicySaidLast) {
  Bench bench;
  bench.rule_ = fleet::ProbeMode::kToken;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.Start();  // and nobody is there to say what is desired
  bench.Pass(1'000);
  ASSERT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.probes_.back(), fleet::ProbeKind::kToken);
}

TEST(Survivor, IsProbedAsItsPolicySaysThatHasChangedSinceItWasLoaded) {
  Bench bench;
  bench.Desire(1, {1});
  bench.rule_ = fleet::ProbeMode::kToken;
  bench.Desire(1, {1});
  bench.Start();
  bench.Pass(1'000);
  EXPECT_EQ(bench.probes_.back(), fleet::ProbeKind::kToken);
}

TEST(Survivor, PassesWithTheGapThatItsPolicyAllows) {
  Bench bench;
  bench.reference_ = kReference;
  bench.gap_ = fleet::ReferenceGap{.mean = 0.3, .max = 0.3};
  bench.gap_ppm_ = 400'000;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.Start();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Survivor, MustDifferWhereItsTrainerSaidThatItDoes) {
  Bench bench;
  bench.traits_.relative_norm_ppm = 900'000;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Start();
  bench.Pass(1'000);
  EXPECT_EQ(bench.Told(1), "FAILED PROBE_SAME_AS_BASE");
}

}  // namespace
}  // namespace lorry::proxy
