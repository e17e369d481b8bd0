// An engine that was taken for gone, and lives.
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

// Its operating system refused one look, as it had too many callers.
class SeemsGone : public ::testing::Test {
 protected:
  SeemsGone() {
    bench_.silent_ = {kLoadEffect};
    bench_.Desire(0, {1});
    Refuses();
    bench_.silent_.clear();
  }
  void Refuses() { bench_.Tell(EngineLost{true}); }
  void IsLoaded() { bench_.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value; }
  void Answers(Outcome outcome) {
    for (OpId op = 1; op < 50; ++op) bench_.Tell(LoadDone{op, outcome, "", ""});
  }
  Bench bench_;
};

TEST_F(SeemsGone, WhoAnswersTheLoadAfterwardsHasNotDiedOfIt) {
  IsLoaded();
  Answers(Outcome::kOk);
  EXPECT_EQ(bench_.DeathsOf(1), 0u);
  bench_.See();
  EXPECT_EQ(bench_.Told(1), "LOADED");
  EXPECT_EQ(bench_.DeathsOf(1), 0u);
  EXPECT_TRUE(bench_.loads_.empty()) << "not once more";
  bench_.Reboot();
  EXPECT_EQ(bench_.DeathsOf(1), 0u) << "it has answered a token since";
}

TEST_F(SeemsGone, NorHasWhoIsSeenBeforeItAnswers) {
  bench_.See();
  IsLoaded();
  Answers(Outcome::kOk);
  bench_.Look(2);
  EXPECT_EQ(bench_.Told(1), "LOADED");
  EXPECT_EQ(bench_.DeathsOf(1), 0u);
}

TEST_F(SeemsGone, WhateverBecomesOfTheLoadThen) {
  bench_.See();
  Answers(Outcome::kBroken);
  EXPECT_EQ(bench_.DeathsOf(1), 0u) << "the connection was cut";
}

TEST_F(SeemsGone, NorWhoRefusesIt) {
  Answers(Outcome::kRefused);
  bench_.Reboot();
  EXPECT_EQ(bench_.DeathsOf(1), 0u);
}

TEST_F(SeemsGone, ManyLooksAreNoAnswer) {
  for (int i = 0; i < 3; ++i) Refuses();
  Answers(Outcome::kUnsent);
  EXPECT_EQ(bench_.DeathsOf(1), 0u);
}

TEST_F(SeemsGone, WhatWasAnsweredIsOnTrialUntilItHasAnsweredAToken) {
  Answers(Outcome::kOk);
  bench_.Reboot();
  EXPECT_EQ(bench_.DeathsOf(1), 1u);
}

TEST_F(SeemsGone, AndWhereTheNextLookIsRefusedAsWell) {
  Answers(Outcome::kOk);
  Refuses();
  EXPECT_EQ(bench_.DeathsOf(1), 1u) << "it may never come back";
  bench_.Reboot();
  EXPECT_EQ(bench_.DeathsOf(1), 1u);
}

}  // namespace
}  // namespace lorry::proxy
