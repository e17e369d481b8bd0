#include "services/engine_proxy/machine/machine.h"

#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

TEST(Residency, AWantedVersionIsFetchedLoadedProbedAndRouted) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  EXPECT_TRUE(bench.Routed(1));
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Residency, AStoreThatIsAwayFailsNobodyAndIsMetSoonAfterItsReturn) {
  Bench proxy;
  proxy.fetch_failure_ = FetchFailed{.reason = "FETCH_UNANSWERED", .detail = "", .away = true};
  proxy.Desire(1, {1});
  for (int s = 0; s < 120; ++s) {
    proxy.Pass(1'000);
    ASSERT_EQ(proxy.Told(1), "FETCHING FETCH_UNANSWERED");
    ASSERT_EQ(proxy.FailureOf(1), fleet::Failure::kNone);
  }
  EXPECT_LT(proxy.fetches_, 70);
  proxy.fetch_failure_.reset();
  proxy.Pass(2'000);
  EXPECT_TRUE(proxy.Routed(1));
}

TEST(Residency, AFetchThatFailsHereIsFailedAfterAFewTries) {
  Bench proxy;
  proxy.fetch_failure_ = FetchFailed{.reason = "DISK_FULL", .detail = ""};
  proxy.Desire(1, {1});
  EXPECT_EQ(proxy.Told(1), "FETCHING DISK_FULL") << "it is tried again, and says why";
  proxy.Pass(2'000);
  EXPECT_EQ(proxy.Told(1), "FAILED DISK_FULL");
  EXPECT_EQ(proxy.fetches_, 3);
}

TEST(Residency, AFetchSaysWhichOtherNodeItWaitsFor) {
  Bench proxy;
  proxy.silent_ = {kFetchEffect};
  proxy.Desire(1, {1});
  EXPECT_EQ(proxy.Told(1), "FETCHING");
  for (OpId op = 1; op < 50; ++op) proxy.Tell(FetchProgress{op, 10, 10, "follower b:1"});
  EXPECT_EQ(proxy.Told(1), "FETCHING FOLLOWER_FETCHES");
  for (OpId op = 1; op < 50; ++op) proxy.Tell(FetchDone{op, "/images/1"});
  EXPECT_EQ(proxy.Told(1), "LOADED");
}

// As where one of the engine's followers has to read the files again.
TEST(Residency, ALoadThatNeverReachedTheEngineWaitsAndBlamesNobody) {
  Bench proxy;
  proxy.load_answer_ = LoadDone{0, Outcome::kUnsent, "FOLLOWER_FETCHES", "follower b:1"};
  proxy.Desire(1, {1});
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(proxy.Told(1), "FETCHED FOLLOWER_FETCHES");
    EXPECT_EQ(proxy.FailureOf(1), fleet::Failure::kNone);
    proxy.Pass(1'000);
  }
  EXPECT_LE(proxy.loads_.size(), 20u) << "it is not asked without a pause";
  proxy.load_answer_.reset();
  proxy.PassAsAsked(2'000);
  EXPECT_EQ(proxy.Told(1), "LOADED");
}

TEST(Failure, SaysWhoseItIs) {
  const auto of_load = [](Outcome outcome) {
    Bench bench;
    bench.load_answer_ = LoadDone{0, outcome, "WHY", "words"};
    bench.Desire(0, {1});
    return bench.FailureOf(1);
  };
  EXPECT_EQ(of_load(Outcome::kRefused), fleet::Failure::kRefused);
  EXPECT_EQ(of_load(Outcome::kFailed), fleet::Failure::kMember);
  EXPECT_EQ(of_load(Outcome::kUnknown), fleet::Failure::kEngineHung);
  const auto of_probe = [](Outcome outcome) {
    Bench bench;
    bench.probe_answer_ = ProbeDone{.outcome = outcome, .reason = "", .detail = ""};
    bench.Desire(0, {1});
    return bench.FailureOf(1);
  };
  EXPECT_EQ(of_probe(Outcome::kRefused), fleet::Failure::kRefused);
  EXPECT_EQ(of_probe(Outcome::kFailed), fleet::Failure::kMember);
  EXPECT_EQ(of_probe(Outcome::kUnknown), fleet::Failure::kEngineHung);
  Bench misfit;
  misfit.trained_on_ = 96;
  misfit.Desire(0, {1});
  EXPECT_EQ(misfit.FailureOf(1), fleet::Failure::kMisfit);
  Bench ignored;
  ignored.compared_ = fleet::ProbeComparison{0, 0};
  ignored.rule_ = fleet::ProbeMode::kDiffers;
  ignored.Desire(0, {1});
  EXPECT_EQ(ignored.FailureOf(1), fleet::Failure::kRefused);
  Bench full;
  full.fetch_failure_ = FetchFailed{.reason = "DISK_FULL", .detail = ""};
  full.Desire(0, {1});
  full.Pass(2'000);
  EXPECT_EQ(full.FailureOf(1), fleet::Failure::kMember);
}

TEST(Residency, NothingIsUnloadedWithACount) {
  Bench bench;
  bench.Desire(1, {1});
  bench.counts_[Bench::NameOf(1)] = 1;
  bench.running_ = 1;
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
  EXPECT_FALSE(bench.Routed(1));
  bench.counts_.clear();
  bench.running_ = 0;
  bench.Tell(DoorReport{bench.machine_->door_table().revision, {}});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.deletes_, 1);
}

TEST(Residency, NothingIsUnloadedBeforeEveryContextHasTheTable) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kTableEffect);
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
}

TEST(Residency, AVersionWithoutARoomThatCouldBeMadeSaysNoSlot) {
  Bench bench;
  bench.limits_ = {.kind = fleet::EngineKind::kSglang, .slots = 1};
  bench.Start();
  bench.Desire(1, {1});
  bench.Desire(2, {2});
  bench.Pass(2'000);
  const fleet::Observed observed = bench.machine_->Observe();
  EXPECT_TRUE(observed.residencies.at(1).no_slot);
  EXPECT_EQ(observed.residencies.at(1).reason, "NO_SLOT");
  EXPECT_NE(observed.residencies.at(1).detail.find("--max-loaded-loras"), std::string::npos);
  EXPECT_FALSE(observed.residencies.at(0).no_slot);
  EXPECT_EQ(observed.residencies.at(0).reason, "");
}

TEST(Residency, SaysNoSlotOfWhatAnotherEngineTriesFirst) {
  Bench bench(fleet::EngineKind::kSglang, /*slots=*/1);
  bench.Desire(1, {1});
  bench.may_load_ = false;
  bench.Desire(2, {2});
  EXPECT_EQ(bench.Told(2), "FETCHED NO_SLOT") << "the row stands on the first";
  EXPECT_EQ(bench.loads_, std::vector<EngineName>{Bench::NameOf(1)});
  bench.Desire(0, {2});
  bench.Pass(2'000);
  EXPECT_EQ(bench.Told(2), "FETCHED");
}

TEST(Row, SaysThatItIsBehindWhileALaterDecisionCannotBeServed) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_FALSE(bench.machine_->door_table().rows.at(0).behind);
  bench.silent_.insert(kLoadEffect);
  bench.Desire(2, {1, 2});
  EXPECT_EQ(bench.TheRow().epoch, Epoch(1));
  EXPECT_TRUE(bench.machine_->door_table().rows.at(0).behind);
}

TEST(Residency, ManyAreUnloadedOneByOneWithoutAPause) {
  Bench bench;
  bench.Desire(1, {1, 2, 3, 4});
  bench.Pass(5'000);
  bench.Desire(5, {5});
  bench.Pass(100);
  EXPECT_EQ(bench.unloads_, 4);
  EXPECT_TRUE(bench.engine_.contains(Bench::NameOf(5)));
}

TEST(Residency, AnUnloadThatIsAnsweredAndNotDoneIsNotAskedForAgainAtOnce) {
  Bench bench;
  bench.Desire(1, {1});
  bench.keeps_.insert(Bench::NameOf(1));
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_GT(bench.unloads_, 1);
  EXPECT_LE(bench.unloads_, 11);
}

TEST(Residency, ASurvivorIsServedAgainAfterARestartWithoutTheOrchestrator) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_FALSE(bench.machine_->door_table().awaits_desired);
  bench.Start();
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_TRUE(bench.machine_->door_table().awaits_desired)
      << "and the door calls nothing else unknown";
  bench.Desire(1, {1});
  EXPECT_FALSE(bench.machine_->door_table().awaits_desired);
}

TEST(Residency, WhatARowStandsOnIsNotLoadedIntoAnotherKindOfEngine) {
  Bench bench;
  bench.traits_.rslora = true;
  bench.Desire(1, {1});
  ASSERT_TRUE(bench.Routed(1));
  bench.Stop();
  bench.engine_.clear();
  bench.loads_.clear();
  bench.boot_ = BootId("boot2");
  bench.limits_.kind = fleet::EngineKind::kSglang;
  bench.Start();
  bench.Look(3);
  EXPECT_TRUE(bench.loads_.empty());
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
}

TEST(Residency, ASurvivorOfALostJournalIsKnownByItsNameAndLeaves) {
  Bench bench;
  const EngineName stranger("other-v7-0123456789ab");
  bench.engine_[stranger] = "/elsewhere";
  bench.engine_[EngineName("not-one-of-ours")] = "/by-hand";
  bench.Reboot();
  bench.engine_[stranger] = "/elsewhere";
  bench.engine_[EngineName("not-one-of-ours")] = "/by-hand";
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(0, {1});
  bench.Pass(10'000);
  const fleet::Observed observed = bench.machine_->Observe();
  const auto it = std::find_if(observed.residencies.begin(), observed.residencies.end(),
                               [&](const auto& r) { return r.name == stranger; });
  ASSERT_NE(it, observed.residencies.end());
  EXPECT_EQ(it->key, (VersionKey{AdapterName("other"), RunId(), VersionNumber(7)}));
  for (const auto& residency : observed.residencies) {
    EXPECT_NE(residency.name, EngineName("not-one-of-ours")) << "what others loaded is theirs";
  }
}

TEST(Residency, ANewBootLosesEverythingAndGetsItAgain) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kLoadEffect);
  bench.Reboot();
  EXPECT_FALSE(bench.Routed(1));
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
}

TEST(Residency, ALoadWithoutAnAnswerThatTheEngineListsIsOurs) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_NE(bench.StateOf(1), fleet::ResidencyState::kAbsent);
}

TEST(Residency, ADirectoryIsNotRemovedWhileALoadOfItMayYetHappen) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(0, {1});
  bench.Desire(0, {2});
  bench.Pass(2'000);
  EXPECT_EQ(bench.deletes_, 0);
}

TEST(Residency, TheAnswerToAnUnloadSettlesALoadThatGotNone) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.Desire(0, {1});
  bench.load_answer_.reset();
  bench.Desire(0, {});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.deletes_, 1);
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kAbsent);
}

// Of two loads without an answer one happened: the name was listed, and is gone again. The other may
// yet read the directory.
TEST(Residency, ADirectoryIsNotRemovedWhileALoadThatWasRepeatedMayYetReadIt) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Desire(0, {1});
  bench.Pass(5'000);
  ASSERT_EQ(bench.Told(1), "LOADED");
  bench.may_load_ = false;
  bench.Desire(0, {1});
  bench.engine_.clear();
  bench.Pass(10'000);
  ASSERT_NE(bench.Told(1), "LOADED");
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(0, {});
  bench.Pass(10'000);
  EXPECT_EQ(bench.deletes_, 0) << "the unload's answer would say that all loads before it are over";
}

TEST(Residency, AnUnloadPastItsDeadlineWedgesAnSglangEngine) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.Desire(1, {1});
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(2, {2});
  bench.Pass(5'000);
  // The driver's deadline passes; every operation number it could be is answered.
  for (OpId op = 1; op < 200; ++op) bench.Tell(UnloadDone{op, Outcome::kUnknown});
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
  bench.Reboot();
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kReady);
}

TEST(Residency, AnOldMayVersionMakesRoomForAMust) {
  Bench bench(fleet::EngineKind::kVllm, 2);
  bench.Desire(1, {1});
  bench.Desire(2, {1, 2});
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  bench.Desire(3, {1, 2, 3});
  bench.Pass(5'000);
  EXPECT_EQ(bench.StateOf(3), fleet::ResidencyState::kLoaded);
}

TEST(Residency, NobodyLeavesForALoadThatIsTriedAgainAndMayHaveItsSlot) {
  Bench bench(fleet::EngineKind::kVllm, 2);
  bench.Desire(0, {1});
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.Desire(0, {1, 2});
  ASSERT_EQ(bench.StateOf(2), fleet::ResidencyState::kFailed);
  bench.load_answer_.reset();
  bench.silent_ = {kHashEffect};
  bench.Pass(31'000);
  ASSERT_NE(bench.StateOf(2), fleet::ResidencyState::kFailed) << "its files are looked at again";
  bench.silent_.clear();
  for (OpId op = 1; op < 100; ++op) bench.Tell(DirectoryHashed{op, true});
  EXPECT_EQ(bench.StateOf(2), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.unloads_, 0);
}

TEST(Residency, SlotsAreCountedByAListingThatShowsWhatTheLastLoadSettled) {
  Bench bench(fleet::EngineKind::kVllm, 3);
  bench.counts_[Bench::NameOf(1)] = 1;  // it cannot be unloaded
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.Desire(0, {1});
  // The engine works off its queue: with the answer to the next load, that of 1 has happened.
  bench.load_answer_.reset();
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Desire(0, {2, 3});
  EXPECT_EQ(bench.StateOf(3), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.StateOf(2), fleet::ResidencyState::kFetched) << "the last slot is for a MUST";
}

TEST(Residency, WhatOthersLoadedAnewUnderItsNameKeepsItsSlot) {
  Bench bench(fleet::EngineKind::kVllm, 1);
  bench.Desire(1, {1});
  bench.Desire(2, {2});
  ASSERT_EQ(bench.Told(2), "FETCHED NO_SLOT");
  bench.engine_[Bench::NameOf(1)] = "/elsewhere";
  bench.silent_ = {kUnloadEffect};
  bench.Pass(6'000);
  EXPECT_FALSE(bench.Routed(1)) << "the list has told it";
  EXPECT_EQ(bench.loads_.size(), 1u) << "it is to leave first";
  EXPECT_TRUE(bench.records_.contains("unloading"));
}

TEST(Rows, ARollingRowServesTheOldVersionUntilTheNewOneIsLoaded) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kLoadEffect);
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1));
}

TEST(Rows, NothingFromBeforeABarrierIsServedUntilTheNewVersionIsLoaded) {
  Bench bench;
  bench.serve_from_ = 2;
  bench.Desire(1, {1});
  bench.silent_.insert(kLoadEffect);
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
}

TEST(Rows, BehindABarrierAnotherProcessOpensOnlyOnceItWasTold) {
  Bench bench;
  bench.serve_from_ = 1;
  bench.Desire(1, {1});
  ASSERT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  bench.Start();
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
  bench.Desire(1, {1});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Rows, AHoldEndsByItsOwnDeadlineAndSaysSo) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(fleet::RowMode::kHeld, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kHeld);
  EXPECT_EQ(bench.TheRow().barrier, Epoch(2));
  EXPECT_EQ(bench.TheRow().epoch, Epoch(1)) << "what it stands on";
  bench.Pass(5'000);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_EQ(bench.TheRow().revoked, Epoch(2));
}

TEST(Rows, ALockNeedsAHoldAndSurvivesARestart) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(fleet::RowMode::kLocked, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  bench.Row(fleet::RowMode::kHeld, 2);
  bench.Row(fleet::RowMode::kLocked, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
  bench.Start();
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
  EXPECT_EQ(bench.TheRow().barrier, Epoch(2));
  EXPECT_EQ(bench.TheRow().epoch, Epoch(1));
  bench.Row(fleet::RowMode::kOpen, 1);  // the sync was aborted
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Rows, ALockGoesFromASyncThatWasBrokenOffToTheNext) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(fleet::RowMode::kHeld, 2);
  bench.Row(fleet::RowMode::kLocked, 2);
  bench.Row(fleet::RowMode::kHeld, 3);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked) << "it holds already";
  bench.Row(fleet::RowMode::kLocked, 3);
  EXPECT_EQ(bench.TheRow().barrier, Epoch(3));
  bench.Start();
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
  EXPECT_EQ(bench.TheRow().barrier, Epoch(3)) << "it was written down";
}

TEST(Rows, OneThatWasClosedWhenItWasAskedToStopStaysSo) {
  for (const fleet::RowMode asked : {fleet::RowMode::kHeld, fleet::RowMode::kLocked}) {
    Bench bench;
    bench.serve_from_ = 1;
    bench.Desire(1, {1});
    bench.Start();  // what its engine has is not known before the engine was looked at
    ASSERT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
    bench.Row(asked, 2);
    EXPECT_NE(bench.TheRow().mode, fleet::RowMode::kOpen) << "the engine still has v1";
    bench.serve_from_ = 0;
    bench.Row(fleet::RowMode::kOpen, 1);
    EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen) << "the sync was broken off";
  }
}

TEST(Rows, OneThatIsClosedSaysThatItWasAskedToHold) {
  Bench bench;
  bench.Row(fleet::RowMode::kHeld, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
  EXPECT_EQ(bench.TheRow().barrier, Epoch(2));
  bench.Row(fleet::RowMode::kLocked, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
}

TEST(Rows, ALowerTermChangesNothing) {
  Bench bench;
  bench.Desire(1, {1});
  fleet::Desired stale;
  stale.term = Term{1, 0};
  stale.revision = Revision(99);
  stale.journal = bench.machine_->journal();
  bench.Tell(DesiredReceived{stale});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_EQ(bench.machine_->term(), (Term{1, 1}));
}

TEST(Records, SurviveTheirText) {
  const std::vector<RecordValue> records = {
      JournalRecord{MemberId("e1"), JournalId("j")},
      TermRecord{Term{1, 2}},
      RowRecord{1, true, Epoch(3), EngineName("n"), Epoch(4), PoolName("p"), true},
      BootRecord{BootId("b")},
      NameRecord{{kMath, RunId(1), VersionNumber(2)},
                 Digest{"d"},
                 fleet::Render::kRsloraFolded,
                 "/p",
                 BootId("b"),
                 BootId("t"),
                 7,
                 false},
      PausedRecord{BootId("b"), fleet::PauseKind::kKeep},
      WedgedRecord{BootId("b"), EngineName("n")},
      KillerRecord{2},
      UnloadingRecord{BootId("b"), EngineName("n"), 9},
  };
  for (const RecordValue& record : records) {
    const absl::StatusOr<RecordValue> decoded = Decode(Encode(record));
    ASSERT_TRUE(decoded.ok()) << Encode(record);
    EXPECT_EQ(*decoded, record) << Encode(record);
  }
  EXPECT_FALSE(Decode("{\"kind\":\"tea\"}").ok());
}

}  // namespace
}  // namespace lorry::proxy
