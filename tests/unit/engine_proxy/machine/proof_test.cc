// What keeps wrong weights from being served: shapes against the engine's base model before a load,
// and the answer against the base model's after it.
#include "gtest/gtest.h"
#include "services/engine_proxy/machine/probe.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

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
  EngineSeen seen{bench.boot_, bench.limits_, "1", ""};
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
  using fleet::ProbeKind, fleet::ProbeRule;
  EXPECT_EQ(ProbeKindFor(ProbeRule::kPresence, trained), ProbeKind::kPresence);
  EXPECT_EQ(ProbeKindFor(ProbeRule::kToken, trained), ProbeKind::kToken);
  EXPECT_EQ(ProbeKindFor(ProbeRule::kDiffers, trained), ProbeKind::kCompare);
  EXPECT_EQ(ProbeKindFor(ProbeRule::kAuto, trained), ProbeKind::kCompare);
  EXPECT_EQ(ProbeKindFor(ProbeRule::kAuto, fresh), ProbeKind::kToken);
  EXPECT_EQ(ProbeKindFor(ProbeRule::kDiffers, fresh), ProbeKind::kToken)
      << "it answers as the base model does, and is right to";
}

TEST(Probe, BeyondTheNoiseIsProof) {
  const auto judged = [](double difference, double noise, uint32_t ppm,
                         fleet::ProbeRule rule = fleet::ProbeRule::kAuto) {
    const ProbeVerdict verdict =
        JudgeProbe(rule, {.relative_norm_ppm = ppm}, fleet::ProbeComparison{difference, noise});
    return verdict.passes ? verdict.reason : "FAILS " + verdict.reason;
  };
  EXPECT_EQ(judged(0.5, 0.01, 10'000), "");
  EXPECT_EQ(judged(0.5, 0.01, 0), "") << "whatever the trainer said";
  EXPECT_EQ(judged(0, 0, 10'000), "FAILS PROBE_SAME_AS_BASE");
  EXPECT_EQ(judged(0.015, 0.01, 10'000), "FAILS PROBE_SAME_AS_BASE") << "as two runs of the base";
  EXPECT_EQ(judged(0, 0, 0), "UNPROVEN") << "nobody knows that it must differ";
  EXPECT_EQ(judged(0, 0, 500), "UNPROVEN") << "bf16 may round it away";
  EXPECT_EQ(judged(0, 0, 0, fleet::ProbeRule::kDiffers), "FAILS PROBE_SAME_AS_BASE");
  EXPECT_EQ(JudgeProbe(fleet::ProbeRule::kAuto, {.relative_norm_ppm = 10'000}, {}).reason,
            "UNPROVEN")
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

TEST(Probe, WhatIsNotProvenIsServedAndSaidToBe) {
  Bench bench;
  bench.compared_ = fleet::ProbeComparison{0, 0};
  bench.Desire(1, {1});
  EXPECT_EQ(bench.Told(1), "LOADED UNPROVEN");
  EXPECT_TRUE(bench.Routed(1));
  EXPECT_EQ(bench.probes_, std::vector{fleet::ProbeKind::kCompare});
}

TEST(Engine, WhyThereIsNoneIsTold) {
  Bench bench;
  bench.Tell(EngineLost{.ended = true, .why = "ENGINE_UNREACHABLE: start it"});
  EXPECT_EQ(bench.machine_->Observe().health_detail, "ENGINE_UNREACHABLE: start it");
}

}  // namespace
}  // namespace lorry::proxy
