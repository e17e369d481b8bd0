// Requests that the door does not count: who waits for them, and until when.
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

constexpr int64_t kTwoAnswersMs = 1'500;
const Config kDefaults;

class Uncounted : public ::testing::Test {
 protected:
  // Version 1 is loaded and routed; the engine is as busy as it likes.
  void Serve(bool leased = false) {
    if (leased) bench_.leased_ = {1};
    bench_.Desire(1, {1});
    ASSERT_TRUE(bench_.Routed(1));
    bench_.running_ = 9;
  }
  bool IsKnown() const { return bench_.machine_->Observe().residencies.at(0).count_known; }
  // As the door reports from time to time.
  void Report(std::map<EngineName, uint32_t> counts) {
    bench_.Tell(DoorReport{bench_.machine_->door_table().revision, std::move(counts)});
  }
  static std::set<EngineName> Names(std::initializer_list<uint64_t> numbers) {
    std::set<EngineName> names;
    for (const uint64_t number : numbers) names.insert(Bench::NameOf(number));
    return names;
  }

  Bench bench_;
};

TEST_F(Uncounted, ANameThatNobodyLeasedLeavesHoweverBusyTheEngineIs) {
  Serve();
  EXPECT_TRUE(IsKnown());
  bench_.Desire(2, {2});
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, RequestsOfAnEarlierProcessCountThoughTheDirectoryIsFoundBroken) {
  Serve();
  bench_.Stop();
  bench_.hash_matches_ = false;
  bench_.answers_ = false;
  bench_.Start();  // it hashes what its row stands on before it has seen the engine
  bench_.Desire(2, {2});
  bench_.See();
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_FALSE(IsKnown());
  bench_.Pass(kDefaults.orphans_ms);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, SoTheyDoThoughTheEngineHasDroppedTheName) {
  Serve();
  bench_.Stop();
  bench_.engine_.clear();
  bench_.Start();
  ASSERT_EQ(bench_.loads_.size(), 2u);
  EXPECT_FALSE(IsKnown());
  bench_.Desire(2, {2});
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Pass(kDefaults.orphans_ms);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, WhoHadALeaseMayCallWhatIsLoadedAnewBeforeItIsKnownThatItEnded) {
  Serve(/*leased=*/true);
  bench_.Stop();
  bench_.engine_.clear();
  bench_.Start();
  ASSERT_EQ(bench_.loads_.size(), 2u) << "its row stands on it";
  bench_.leased_.clear();
  bench_.Desire(2, {2});
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.running_names_ = Names({});
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, WhoHadALeaseMayCallWhatIsYetToBeLoaded) {
  bench_.leased_ = {1};
  bench_.Desire(0, {1});
  bench_.engine_.clear();
  bench_.silent_ = {kLoadEffect};
  bench_.running_ = 9;
  bench_.Pass(kDefaults.list_ms + 1'000);
  ASSERT_EQ(bench_.StateOf(1), fleet::ResidencyState::kLoading);
  bench_.Stop();
  bench_.silent_ = {};
  bench_.leased_.clear();
  bench_.Start();
  bench_.Desire(0, {2});
  EXPECT_EQ(bench_.unloads_, 0) << "it may be there since the engine listed its names";
}

TEST_F(Uncounted, TheProbeOfAnEarlierProcessMayStillRun) {
  Serve();
  bench_.silent_ = {kProbeEffect};
  bench_.Desire(1, {1, 2});
  ASSERT_EQ(bench_.StateOf(2), fleet::ResidencyState::kLoading);
  bench_.Stop();
  bench_.running_names_ = Names({2});
  bench_.silent_ = {kListEffect};  // what is wanted is known before what the engine has
  bench_.Start();
  bench_.Desire(2, {1});
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.running_names_ = Names({});
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, ALeasedNameStaysWhileTheEngineIsBusierThanTheDoor) {
  Serve(/*leased=*/true);
  bench_.Desire(2, {2});
  bench_.Pass(20'000);
  EXPECT_EQ(bench_.unloads_, 0);
  EXPECT_EQ(bench_.StateOf(1), fleet::ResidencyState::kLoaded);
  bench_.running_ = 0;
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, TheDoorsOwnRequestsAreNobodyElses) {
  Serve(/*leased=*/true);
  bench_.counts_[Bench::NameOf(2)] = 9;
  bench_.Desire(2, {2});
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, ALeasedNameLeavesOnceTheEngineDoesNotNameIt) {
  Serve(/*leased=*/true);
  bench_.running_names_ = Names({1, 2});
  bench_.Desire(2, {2});
  bench_.Pass(20'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.running_names_ = Names({2});
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, OneAnswerIsNotEnough) {
  Serve(/*leased=*/true);
  bench_.running_names_ = Names({});
  bench_.Desire(2, {2});
  bench_.Pass(500);
  bench_.running_names_ = Names({1});
  bench_.Pass(20'000);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(Uncounted, ALeasedNameLeavesAtTheDrainDeadlineWhateverTheEngineSays) {
  Serve(/*leased=*/true);
  bench_.Desire(2, {2});
  bench_.Pass(kDefaults.drain_ms - 1'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Pass(2'000);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, TheDrainDeadlineRunsFromTheEndOfTheLease) {
  Serve(/*leased=*/true);
  bench_.Pass(2 * kDefaults.drain_ms);
  bench_.Desire(2, {2});
  bench_.Pass(20'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.leased_ = {1};
  bench_.Desire(2, {1, 2});  // leased anew
  bench_.leased_ = {};
  bench_.Pass(kDefaults.drain_ms);
  bench_.Desire(2, {2});
  bench_.Pass(kDefaults.drain_ms - 1'000);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(Uncounted, ARestartForgetsNoLease) {
  Serve(/*leased=*/true);
  bench_.Desire(2, {2});
  bench_.Start();
  bench_.Desire(2, {2});
  bench_.Pass(kDefaults.orphans_ms + 5'000);
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Pass(kDefaults.drain_ms);
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, NorOneOfWhatWasLoadedBefore) {
  Serve();
  bench_.leased_ = {1};
  bench_.Desire(1, {1});
  bench_.Start();
  bench_.Desire(2, {2});
  bench_.Pass(kDefaults.orphans_ms + 5'000);
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(Uncounted, ALeasedNameSaysWhyNothingElseFindsRoom) {
  bench_.limits_ = {.kind = fleet::EngineKind::kSglang, .slots = 2};
  bench_.Start();
  Serve(/*leased=*/true);
  bench_.Desire(2, {2});
  bench_.Desire(2, {2, 3});
  EXPECT_EQ(bench_.Told(3), "FETCHED NO_SLOT");
}

TEST_F(Uncounted, AfterARestartCountsAreUnknownUntilTheEngineIsQuietTwice) {
  Serve();
  bench_.Start();
  EXPECT_FALSE(IsKnown());
  bench_.running_ = 0;
  bench_.Pass(kTwoAnswersMs);
  EXPECT_FALSE(IsKnown());
  bench_.Pass(kTwoAnswersMs);
  EXPECT_TRUE(IsKnown());
}

TEST_F(Uncounted, AfterARestartANameIsKnownOnceTheEngineDoesNotNameIt) {
  Serve();
  bench_.Desire(2, {1, 2});
  bench_.running_names_ = Names({1});
  bench_.Start();
  bench_.Pass(2 * kTwoAnswersMs);
  EXPECT_FALSE(bench_.machine_->Observe().residencies.at(0).count_known);
  EXPECT_TRUE(bench_.machine_->Observe().residencies.at(1).count_known);
}

TEST_F(Uncounted, AfterARestartOnlyWhatWasLoadedBeforeIsUnknown) {
  Serve();
  bench_.Start();
  bench_.Desire(2, {1, 2});
  EXPECT_FALSE(bench_.machine_->Observe().residencies.at(0).count_known);
  EXPECT_TRUE(bench_.machine_->Observe().residencies.at(1).count_known);
}

TEST_F(Uncounted, AfterARestartNoEngineIsWaitedForLongerThanItTakesToMissItsClients) {
  Serve();
  bench_.Start();
  bench_.Pass(kDefaults.orphans_ms - 500);
  EXPECT_FALSE(IsKnown());
  bench_.Pass(1'000);
  EXPECT_TRUE(IsKnown());
}

TEST_F(Uncounted, ARequestThatTheDoorHasNotEndedYetHidesNoneOfAnEarlierProcess) {
  Serve();
  bench_.running_ = 1;  // admitted before the restart
  bench_.Start();
  for (int64_t passed = 0; passed + 500 < kDefaults.orphans_ms; passed += 500) {
    // What the door counts while the engine is asked, the engine has ended already.
    Report({{Bench::NameOf(1), 1}});
    bench_.Pass(500);
    Report({});
  }
  EXPECT_FALSE(IsKnown());
}

TEST_F(Uncounted, ANewBootHasNoRequestsOfTheOld) {
  Serve();
  bench_.Start();
  bench_.Reboot();
  bench_.Desire(1, {1});
  EXPECT_TRUE(IsKnown());
}

// The lease goes on, and so do its clients: they are waited for as at the end of one.
TEST_F(Uncounted, WhatIsLeasedAndNotBelievedAfterARestartIsLoadedAnew) {
  for (const bool is_lost : {true, false}) {
    Bench bench;
    bench.leased_ = {1};
    bench.Desire(1, {1});
    bench.running_names_ = Names({1});
    bench.Stop();
    if (is_lost) bench.records_.clear();
    bench.hash_matches_ = is_lost;
    bench.Start();
    bench.Desire(1, {1});
    bench.Pass(20'000);
    EXPECT_EQ(bench.unloads_, 0) << is_lost;
    bench.running_names_ = Names({});
    bench.Pass(2 * kTwoAnswersMs);
    EXPECT_EQ(bench.unloads_, 1) << is_lost;
    EXPECT_EQ(bench.Told(1), "LOADED") << is_lost;
    bench.leased_ = {};
    bench.running_names_ = Names({1});
    bench.Desire(2, {2});
    bench.Pass(20'000);
    EXPECT_EQ(bench.unloads_, 1) << "clients of the lease go on with what was loaded anew";
  }
}

TEST_F(Uncounted, WhatIsLeasedAndNotBelievedIsLoadedAnewAtTheDrainDeadline) {
  Serve(/*leased=*/true);
  bench_.Stop();
  bench_.records_.clear();
  bench_.Start();
  for (int64_t passed = 0; passed + 2'000 < kDefaults.drain_ms; passed += 1'000) {
    bench_.Desire(1, {1});
    bench_.Pass(1'000);
  }
  EXPECT_EQ(bench_.unloads_, 0);
  bench_.Pass(3'000);
  EXPECT_EQ(bench_.Told(1), "LOADED");
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(Uncounted, ASurvivorOfALostJournalIsUnknown) {
  Serve();
  bench_.records_.clear();
  bench_.Start();
  bench_.Pass(500);
  EXPECT_FALSE(IsKnown());
}

TEST_F(Uncounted, SoIsOneThatIsWantedBeforeTheEngineListsIt) {
  Serve();
  bench_.records_.clear();
  bench_.silent_.insert(kListEffect);
  bench_.Start();
  bench_.Desire(1, {1});
  for (OpId op = 1; op < 50; ++op) bench_.Tell(Listed{op, Outcome::kOk, bench_.engine_});
  EXPECT_FALSE(IsKnown());
  EXPECT_EQ(bench_.unloads_, 0);
}

TEST_F(Uncounted, WhatTheEngineLoadsAgainByItselfHasARequestThatAskedForIt) {
  Serve();
  bench_.keeps_.insert(Bench::NameOf(1));
  bench_.Desire(2, {2});
  EXPECT_EQ(bench_.unloads_, 1);
  bench_.Pass(1'000);
  EXPECT_EQ(bench_.unloads_, 1);
  EXPECT_FALSE(IsKnown());
  bench_.Pass(kDefaults.orphans_ms);
  EXPECT_EQ(bench_.unloads_, 2);
}

// From a directory that was fetched anew, and that nobody has asked an engine to read since.
TEST_F(Uncounted, WhatItLoadsAgainByItselfItMayRead) {
  bench_.may_load_ = false;
  bench_.Desire(0, {1});
  ASSERT_EQ(bench_.StateOf(1), fleet::ResidencyState::kFetched);
  bench_.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench_.Pass(kDefaults.list_ms + 1'000);
  bench_.Stop();
  bench_.answers_ = false;
  bench_.Start();
  bench_.Desire(0, {2});
  EXPECT_EQ(bench_.deletes_, 0) << "this process has not seen the engine yet";
}

}  // namespace
}  // namespace lorry::proxy
