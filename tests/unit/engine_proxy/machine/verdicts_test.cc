// Who is blamed when an engine dies, hangs or breaks off (verdicts.h).
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::Failure;

ProbeDone BrokenProbe() {
  return {.outcome = Outcome::kBroken, .reason = "ENGINE_CONNECTION_BROKEN", .detail = ""};
}

TEST(Verdicts, TheVersionWhoseProbeBrokeIsBlamedThoughTheLookComesLater) {
  Bench bench;
  bench.probe_answer_ = BrokenProbe();
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "LOADING") << "it stays on trial until the boot is judged";
  // An innocent one is wanted before anybody has noticed the death.
  bench.Desire(0, {1, 2});
  bench.Wait(900);
  bench.probe_answer_.reset();
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

// An engine that ends by itself refuses connections before anybody has noticed.
TEST(Verdicts, WhatTheEngineNeverHeardOfIsNotBlamed) {
  Bench bench;
  bench.Desire(0, {1});
  bench.load_answer_ = LoadDone{0, Outcome::kUnsent, "ENGINE_UNREACHABLE", ""};
  bench.silent_ = {kListEffect};
  bench.Desire(0, {1, 2});
  ASSERT_EQ(bench.loads_.back(), Bench::NameOf(2));
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

// Also before the engine's next listing shows what came of it.
TEST(Verdicts, WhatTheEngineFailedToLoadIsNotBlamedForItsEnd) {
  for (const auto outcome : {Outcome::kFailed, Outcome::kRefused}) {
    Bench bench;
    bench.Desire(0, {1});
    bench.load_answer_ = LoadDone{0, outcome, "DIRECTORY_UNREADABLE", ""};
    bench.silent_ = {kListEffect};
    bench.Desire(0, {1, 2});
    ASSERT_EQ(bench.loads_.back(), Bench::NameOf(2));
    bench.Reboot();
    EXPECT_EQ(bench.DeathsOf(2), 0u);
  }
}

// It was asked for the load in the moment in which somebody noticed that it had ended.
TEST(Verdicts, AnEngineThatWasGoneBeforeTheLoadDidNotDieOfIt) {
  for (const auto outcome : {Outcome::kUnsent, Outcome::kBroken}) {
    Bench bench;
    bench.silent_ = {kLoadEffect};
    bench.Desire(0, {1});
    bench.Tell(EngineLost{true});
    EXPECT_EQ(bench.DeathsOf(1), 0u) << "its answer says whether it was sent";
    for (OpId op = 1; op < 50; ++op) bench.Tell(LoadDone{op, outcome, "ENGINE_RESTARTED", ""});
    EXPECT_EQ(bench.DeathsOf(1), outcome == Outcome::kUnsent ? 0u : 1u);
    bench.silent_.clear();
    bench.Reboot();
    EXPECT_EQ(bench.DeathsOf(1), outcome == Outcome::kUnsent ? 0u : 1u) << "nor twice";
  }
}

// Both are heard of in one turn, so that the load has not been handed out yet.
TEST(Verdicts, AnEngineDidNotDieOfWhatItWasGoingToBeAsked) {
  Bench bench;
  bench.silent_ = {kShapesEffect, kLoadEffect};
  bench.Desire(0, {1});
  for (OpId op = 1; op < 50; ++op)
    bench.machine_->Step(bench.now(), ShapesChecked{op, Outcome::kOk, true, ""});
  ASSERT_EQ(bench.Told(1), "LOADING");
  bench.boot_ = BootId("boot2");
  bench.See();
  EXPECT_EQ(bench.DeathsOf(1), 0u);
}

TEST(Verdicts, WhatTheEngineNeverHeardOfAcquitsNobody) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "ENGINE_TIMEOUT", ""};
  bench.Desire(0, {1});
  bench.load_answer_ = LoadDone{0, Outcome::kUnsent, "ENGINE_UNREACHABLE", ""};
  bench.Desire(0, {1, 2});
  ASSERT_EQ(bench.loads_.back(), Bench::NameOf(2));
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

// It may have been asked for: nobody can tell, as the process that wrote it down is gone.
TEST(Verdicts, WhatIsWrittenDownAsTriedIsBlamedThoughTheProcessDiedBeforeItWasSent) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(1, {1});
  bench.Stop();
  bench.boot_ = BootId("boot2");
  bench.Start();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
}

TEST(Verdicts, WhatTheEngineNeverHeardOfIsNotBlamedByTheNextProcessEither) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnsent, "ENGINE_UNREACHABLE", ""};
  bench.Desire(1, {1});
  ASSERT_EQ(bench.loads_.size(), 1u);
  bench.Stop();
  bench.boot_ = BootId("boot2");
  bench.Start();
  EXPECT_EQ(bench.DeathsOf(1), 0u);
}

// Whoever lets others try it must not take it for one that is merely on its way out.
TEST(Verdicts, WhatIsProbedIsToldAsLoadingThoughNobodyWantsItAnyMore) {
  Bench bench;
  bench.silent_ = {kProbeEffect};
  bench.Desire(0, {1});
  bench.Desire(0, {2});
  EXPECT_EQ(bench.Told(1), "LOADING");
}

// That the engine took it, and answers others, does not say that it answers this one.
TEST(Verdicts, WhatNeverAnsweredIsOnTrialAgainWhileItIsProbed) {
  Bench bench;
  bench.probe_answer_ = ProbeDone{.outcome = Outcome::kUnknown, .reason = "", .detail = ""};
  bench.Desire(0, {1});
  bench.probe_answer_.reset();
  bench.Desire(0, {1, 2});
  ASSERT_EQ(bench.Told(2), "LOADED");
  bench.silent_ = {kProbeEffect};
  bench.Pass(60'000);
  ASSERT_EQ(bench.Told(1), "LOADING");
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

TEST(Verdicts, NothingElseIsTriedBesideAVersionThatIsOnTrial) {
  Bench bench;
  bench.silent_ = {kProbeEffect};
  bench.Desire(0, {1});
  bench.Desire(0, {1, 2});
  bench.Pass(20'000);
  EXPECT_EQ(bench.loads_, std::vector{Bench::NameOf(1)});
}

TEST(Verdicts, AProbeBehindALongQueueBlamesNobody) {
  Bench bench;
  bench.probe_answer_ = ProbeDone{.outcome = Outcome::kUnknown, .others_heard = true};
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "FAILED PROBE_BEHIND_OTHERS");
  EXPECT_EQ(bench.FailureOf(1), Failure::kMember);
  bench.probe_answer_->others_heard = false;
  bench.Pass(60'000);
  EXPECT_EQ(bench.FailureOf(1), Failure::kEngineHung);
  bench.probe_answer_ =
      ProbeDone{.outcome = Outcome::kRefused, .reason = "ENGINE_REFUSED", .others_heard = true};
  bench.Pass(60'000);
  EXPECT_EQ(bench.Told(1), "FAILED ENGINE_REFUSED") << "it did come to this one";
  EXPECT_EQ(bench.FailureOf(1), Failure::kRefused);
  bench.probe_answer_.reset();
  bench.Pass(60'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Verdicts, AfterADeathItWaitsForAWordFromWhoKnowsOfIt) {
  Bench bench;
  bench.probe_answer_ = BrokenProbe();
  bench.Desire(0, {1});
  bench.Reboot();
  bench.Pass(60'000);
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.Told(1), "FETCHED");
  bench.Stop();
  bench.Start();  // nor does the next process
  bench.Desire(0, {1});
  bench.Pass(60'000);
  EXPECT_EQ(bench.loads_.size(), 1u);
  bench.probe_answer_.reset();
  bench.deaths_allowed_ = 1;
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.loads_.size(), 2u);
}

// A registry that hangs has nothing to do with what answers a token.
TEST(Verdicts, WhatAWedgedEngineDiesOfInAProbeIsBlamed) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.Desire(0, {1});
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.silent_ = {kProbeEffect};
  bench.Desire(0, {1, 2});
  ASSERT_EQ(bench.Told(2), "LOADING");
  bench.unload_outcome_ = Outcome::kUnknown;
  bench.Desire(0, {2});
  bench.Pass(5'000);
  ASSERT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(2), 1u);
}

TEST(Verdicts, LeaveForOneBootHoldsOnNoOther) {
  Bench bench;
  bench.on_this_boot_ = true;
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
  bench.Reboot();
  bench.Pass(60'000);
  EXPECT_EQ(bench.Told(1), "FETCHED");
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Verdicts, WhatARowStandsOnIsNotLoadedAgainWhereItKilledBeforeAnybodySaysSo) {
  Bench bench;
  bench.Desire(1, {1});
  bench.probe_answer_ = BrokenProbe();
  bench.deaths_allowed_ = 1;
  bench.Reboot();  // it is loaded again, and the engine ends
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  const size_t loads = bench.loads_.size();
  bench.Stop();
  bench.Start();
  bench.Pass(60'000);
  EXPECT_EQ(bench.loads_.size(), loads) << "it has heard of no one yet";
}

TEST(Verdicts, AConnectionThatBreaksOnALivingEngineIsTheMembersOwn) {
  Bench bench;
  bench.probe_answer_ = BrokenProbe();
  bench.Desire(0, {1});
  bench.See();  // may have been on its way
  EXPECT_EQ(bench.Told(1), "LOADING");
  bench.Look(5);
  EXPECT_EQ(bench.Told(1), "LOADING") << "a server may answer for a while after its core died";
  bench.Look(1);
  EXPECT_EQ(bench.FailureOf(1), Failure::kMember);
  bench.probe_answer_.reset();
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_EQ(bench.DeathsOf(1), 0u);
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 0u) << "what answered is not on trial any more";
}

TEST(Verdicts, ALoadThatBrokeOffAndHappenedGoesOn) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kBroken, "ENGINE_CONNECTION_BROKEN", ""};
  bench.Desire(0, {1});
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Look(7);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Verdicts, TheNextProcessBlamesTheSameVersion) {
  Bench bench;
  bench.silent_ = {kProbeEffect};
  bench.Desire(0, {1});
  bench.Stop();
  bench.boot_ = BootId("boot2");
  bench.engine_.clear();
  bench.Start();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
}

TEST(Verdicts, ALoadOfAnEarlierProcessIsTriedAgainAndNobodyTakesItForOver) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(0, {1});
  bench.Stop();
  bench.loads_.clear();
  bench.silent_ = {kHashEffect};
  bench.answers_ = false;
  bench.Start();
  EXPECT_EQ(bench.Told(1), "LOADING") << "the engine may yet read it, and end of it";
  bench.See();
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "LOADING");
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
}

TEST(Verdicts, AnEngineThatIsGoneWhenTheNextProcessStartsEndedOfWhatTheEarlierOneTried) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(0, {1});
  bench.Stop();
  bench.answers_ = false;
  bench.Start();
  bench.Tell(EngineLost{.ended = true});
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.Told(1), "FETCHED");
  bench.Tell(EngineLost{.ended = true});
  EXPECT_EQ(bench.DeathsOf(1), 1u);
}

TEST(Verdicts, ALoadOfAnEarlierProcessThatMayNotBeRepeatedEndsWithAnUnload) {
  for (const bool wanted : {true, false}) {
    Bench bench(fleet::EngineKind::kSglang);
    bench.silent_ = {kLoadEffect};
    bench.Desire(0, {1});
    bench.Stop();
    bench.silent_ = {};
    bench.Start();
    bench.may_load_ = false;
    bench.Desire(0, wanted ? std::vector<uint64_t>{1} : std::vector<uint64_t>{});
    EXPECT_EQ(bench.unloads_, 0) << "the probe of that process may still run";
    bench.Pass(3'000);
    EXPECT_EQ(bench.unloads_, 1) << "the engine showed twice that nothing does";
    EXPECT_EQ(bench.Told(1), wanted ? "FETCHED" : "ABSENT");
    EXPECT_TRUE(bench.loads_.empty());
    bench.Reboot();
    EXPECT_EQ(bench.DeathsOf(1), 0u) << "the engine answered";
  }
}

TEST(Verdicts, ALoadThatMayNotBeRepeatedEndsWithAnUnloadThoughTheVersionIsLeased) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.silent_ = {kLoadEffect};
  bench.leased_ = {1};
  bench.Desire(0, {1});
  bench.Stop();
  bench.silent_ = {};
  bench.running_ = 9;
  bench.Start();
  bench.may_load_ = false;
  bench.Desire(0, {1});
  EXPECT_EQ(bench.unloads_, 1) << "nobody calls by a name that the engine does not list";
  EXPECT_EQ(bench.Told(1), "FETCHED");
  bench.may_load_ = true;
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Verdicts, WhatIsLeasedIsNotUnloadedBeforeTheEngineHasShownThatItLacksIt) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.silent_ = {kProbeEffect};
  bench.leased_ = {1};
  bench.Desire(0, {1});
  bench.Stop();
  bench.silent_ = {kListEffect};
  bench.Start();
  bench.may_load_ = false;
  bench.Desire(0, {1});
  bench.Pass(1'000);
  EXPECT_EQ(bench.unloads_, 0);
}

TEST(Verdicts, ALoadOfAnEarlierProcessThatHappenedIsOver) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(0, {1});
  bench.Stop();
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.silent_ = {};
  bench.Start();
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "LOADED");
  EXPECT_TRUE(bench.loads_.empty());
}

TEST(Verdicts, WhatAnsweredOnThisBootBeforeIsNotOnTrialAfterARestart) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Stop();
  bench.silent_ = {kProbeEffect};
  bench.Start();
  EXPECT_EQ(bench.Told(1), "LOADING");
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 0u);
}

TEST(Verdicts, OfTwoTheOneIsBlamedWhoseCallWentWrongFirst) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "ENGINE_TIMEOUT", ""};
  bench.Desire(0, {1});
  EXPECT_EQ(bench.FailureOf(1), Failure::kEngineHung);
  bench.load_answer_.reset();
  bench.silent_ = {kLoadEffect};
  bench.Desire(0, {1, 2});
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 1u);
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

TEST(Verdicts, AVersionThatHungIsAcquittedByTheEnginesNextAnswer) {
  Bench bench;
  bench.probe_answer_ = ProbeDone{.outcome = Outcome::kUnknown, .reason = "", .detail = ""};
  bench.Desire(0, {1});
  bench.probe_answer_.reset();
  bench.Desire(0, {1, 2});
  EXPECT_EQ(bench.Told(2), "LOADED");
  bench.Reboot();
  EXPECT_EQ(bench.DeathsOf(1), 0u);
  EXPECT_EQ(bench.DeathsOf(2), 0u);
}

TEST(Verdicts, OneThatHangsDoesNotKeepTheOthersFromTheEngine) {
  Bench bench;
  bench.probe_answer_ = ProbeDone{.outcome = Outcome::kUnknown, .reason = "", .detail = ""};
  bench.Desire(0, {1});
  bench.probe_answer_.reset();
  bench.Desire(0, {1, 2, 3});
  EXPECT_EQ(bench.Told(2), "LOADED");
  EXPECT_EQ(bench.Told(3), "LOADED");
  EXPECT_EQ(bench.probes_.size(), 3u) << "it is not tried again at once";
}

TEST(Verdicts, NobodyIsBlamedForTheRestartOfAWedgedEngine) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "ENGINE_TIMEOUT", ""};
  bench.Desire(0, {1, 2, 3});
  ASSERT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  bench.Reboot();
  for (const uint64_t number : {1, 2, 3}) EXPECT_EQ(bench.DeathsOf(number), 0u);
}

TEST(Verdicts, ALoadIsUncertainOnAnEngineThatWasTakenForGone) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(0, {1});
  bench.Tell(EngineLost{.ended = true, .why = "refused"});
  bench.silent_ = {kUnloadEffect};
  bench.Desire(0, {});
  bench.See();  // the same boot
  bench.Pass(5'000);
  EXPECT_EQ(bench.deletes_, 0) << "the engine may yet read it";
}

}  // namespace
}  // namespace lorry::proxy
