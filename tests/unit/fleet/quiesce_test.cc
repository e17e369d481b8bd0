// Which pauses, engines, flushes and rules for requests in flight go together.
#include "lib/fleet/quiesce.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lorry::fleet {
namespace {

using ::testing::HasSubstr;

constexpr PauseKind kAll[] = {PauseKind::kNone,    PauseKind::kDrain,   PauseKind::kAbort,
                              PauseKind::kRetract, PauseKind::kInPlace, PauseKind::kWait,
                              PauseKind::kKeep};

AdapterPolicy With(PauseKind kind, InFlightMode in_flight, FlushMode flush) {
  AdapterPolicy policy;
  policy.quiesce = kind;
  policy.in_flight = in_flight;
  policy.flush = flush;
  return policy;
}

TEST(Quiesce, EachEngineHasItsOwnPausesAndBothDrain) {
  std::string sglang, vllm, unknown;
  for (const PauseKind kind : kAll) {
    sglang += CanQuiesce(EngineKind::kSglang, kind) ? '1' : '0';
    vllm += CanQuiesce(EngineKind::kVllm, kind) ? '1' : '0';
    unknown += CanQuiesce(EngineKind::kUnknown, kind) ? '1' : '0';
  }
  EXPECT_EQ(sglang, "1111100");
  EXPECT_EQ(vllm, "1110011");
  EXPECT_EQ(unknown, "1111111") << "not judged before it is known";
}

TEST(Quiesce, WhatAnEngineLacksIsSaidWithWhatItHas) {
  const AdapterPolicy policy = With(PauseKind::kKeep, InFlightMode::kFinishOnOld, FlushMode::kAuto);
  EXPECT_EQ(WhyNotServable({.kind = EngineKind::kVllm}, {}, policy), "");
  EXPECT_THAT(WhyNotServable({.kind = EngineKind::kVllm, .rank_limit = 8}, {.rank_max = 9}, policy),
              HasSubstr("rank"));
  const std::string why = WhyNotServable({.kind = EngineKind::kSglang}, {}, policy);
  EXPECT_THAT(why, HasSubstr("QUIESCE_UNSUPPORTED: the policy says quiesce=keep"));
  EXPECT_THAT(why, HasSubstr("none, drain, abort, retract, in_place"));
}

TEST(Quiesce, AFlushNeedsAnEngineAtRest) {
  std::string can;
  for (const PauseKind kind : kAll) {
    const InFlightMode in_flight =
        kind == PauseKind::kAbort ? InFlightMode::kAbort : InFlightMode::kFinishOnOld;
    EXPECT_EQ(WhyNotTogether(With(kind, in_flight, FlushMode::kAuto)), "");
    EXPECT_EQ(WhyNotTogether(With(kind, in_flight, FlushMode::kNever)), "");
    can += WhyNotTogether(With(kind, in_flight, FlushMode::kAlways)).empty() ? '1' : '0';
  }
  EXPECT_EQ(can, "0010011");
  EXPECT_THAT(WhyNotTogether(With(PauseKind::kDrain, InFlightMode::kAbort, FlushMode::kAlways)),
              HasSubstr("set quiesce to one of abort, wait, keep"));
}

TEST(Quiesce, WhatBecomesOfRequestsIsSaidInOneWay) {
  for (const InFlightMode rule :
       {InFlightMode::kFinishOnOld, InFlightMode::kAbort, InFlightMode::kResumeOnNew}) {
    std::string can;
    for (const PauseKind kind : kAll)
      can += WhyNotTogether(With(kind, rule, FlushMode::kAuto)).empty() ? '1' : '0';
    EXPECT_EQ(can, rule == InFlightMode::kFinishOnOld ? "1101111"
                   : rule == InFlightMode::kAbort     ? "1110010"
                                                      : "1100010");
  }
}

TEST(Quiesce, WhatWaitsForRequestsHasTheTimeToDrain) {
  AdapterPolicy policy = With(PauseKind::kKeep, InFlightMode::kFinishOnOld, FlushMode::kAlways);
  policy.barrier_deadline_ms = 5;
  policy.drain_deadline_ms = 70;
  EXPECT_EQ(QuiesceOf(policy), (DesiredPause{PauseKind::kKeep, 5, true}));
  policy.quiesce = PauseKind::kWait;
  EXPECT_EQ(QuiesceOf(policy), (DesiredPause{PauseKind::kWait, 75, true}));
  policy.quiesce = PauseKind::kDrain;
  policy.flush = FlushMode::kAuto;
  EXPECT_EQ(QuiesceOf(policy), (DesiredPause{PauseKind::kDrain, 75, false}));
  policy.quiesce = PauseKind::kNone;
  EXPECT_EQ(QuiesceOf(policy), DesiredPause());
  EXPECT_EQ(policy.HoldLimitMs(), 5);
}

}  // namespace
}  // namespace lorry::fleet
