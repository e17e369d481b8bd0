// Which documents and answers count, what a fetch or a directory comes to, and what a journal keeps.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::Failure;
using fleet::RowMode;

fleet::Desired DocumentOf(const Bench& bench, uint64_t revision, uint64_t epoch) {
  fleet::Desired desired;
  desired.term = Term{1, 1};
  desired.revision = Revision(revision);
  desired.journal = bench.machine_->journal();
  for (const uint64_t number : {1, 2}) {
    fleet::WantedVersion wanted;
    wanted.name = Bench::NameOf(number);
    wanted.key = {kMath, RunId(1), VersionNumber(number)};
    wanted.must = true;
    desired.wanted.push_back(wanted);
  }
  desired.rows = {fleet::DesiredRow{
      .adapter = kMath, .mode = RowMode::kOpen, .epoch = Epoch(epoch), .target = Bench::NameOf(2)}};
  return desired;
}

TEST(Documents, OneForAnotherJournalChangesNothing) {
  Bench bench;
  bench.Desire(5, {1});
  fleet::Desired others = DocumentOf(bench, 50, 6);
  others.journal = JournalId("another");
  bench.Tell(DesiredReceived{others});
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1));
  others.journal = bench.machine_->journal();
  bench.Tell(DesiredReceived{others});
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
}

TEST(Documents, AnOlderOneOfTheSameReignChangesNothing) {
  Bench bench;
  for (int i = 0; i < 3; ++i) bench.Desire(5, {1});
  for (const uint64_t revision : {2, 3}) {
    bench.Tell(DesiredReceived{DocumentOf(bench, revision, 6)});
    EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1)) << revision;
  }
  bench.Tell(DesiredReceived{DocumentOf(bench, 4, 6)});
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
}

TEST(Documents, ARowsEpochNeverFallsWithinAnIncarnation) {
  Bench bench;
  bench.Desire(5, {1});
  bench.Tell(DesiredReceived{DocumentOf(bench, 50, 4)});
  EXPECT_EQ(bench.TheRow().epoch, Epoch(5));
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1));
  fleet::Desired later = DocumentOf(bench, 51, 4);
  later.term = Term{2, 1};
  bench.Tell(DesiredReceived{later});
  EXPECT_EQ(bench.TheRow().epoch, Epoch(4));
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
}

TEST(Answers, ToWhatNobodyAskedAreNothing) {
  Bench bench;
  bench.Desire(1, {1});
  const std::string before = bench.machine_->Describe();
  constexpr OpId kNever = 99'999;
  const std::vector<Event> strays = {FetchProgress{kNever, 1, 2},
                                     FetchDone{kNever, "/elsewhere"},
                                     FetchFailed{.op = kNever, .reason = "", .detail = ""},
                                     FetchCancelled{kNever},
                                     DirectoryHashed{kNever, false},
                                     ShapesChecked{kNever, Outcome::kOk, false, ""},
                                     DirectoryDeleted{kNever, Outcome::kOk},
                                     LoadDone{kNever, Outcome::kRefused, "", ""},
                                     ProbeDone{.op = kNever, .outcome = Outcome::kRefused},
                                     UnloadDone{kNever, Outcome::kOk},
                                     Listed{kNever, Outcome::kOk, {}},
                                     PauseDone{kNever, Outcome::kOk},
                                     ResumeDone{kNever, Outcome::kOk}};
  for (const Event& stray : strays) {
    bench.Tell(stray);
    EXPECT_EQ(bench.machine_->Describe(), before) << stray.index();
  }
}

TEST(Fetching, TellsHowFarItIs) {
  Bench bench;
  bench.silent_ = {kFetchEffect};
  bench.Desire(0, {1});
  for (OpId op = 1; op < 20; ++op) bench.Tell(FetchProgress{op, 30, 100});
  EXPECT_EQ(bench.machine_->Observe().residencies.at(0).bytes_done, 30u);
  EXPECT_EQ(bench.machine_->Observe().residencies.at(0).bytes_total, 100u);
}

TEST(Fetching, AFewAreFetchedAtATime) {
  Bench bench;
  bench.silent_ = {kFetchEffect};
  bench.Desire(0, {1, 2, 3, 4});
  int fetching = 0;
  for (const uint64_t number : {1, 2, 3, 4}) fetching += bench.Told(number) == "FETCHING" ? 1 : 0;
  EXPECT_EQ(fetching, 2);
}

TEST(Fetching, WhatTheSameBytesWouldMeetAgainIsTriedAgainMuchLater) {
  Bench bench;
  bench.fetch_failure_ = FetchFailed{.reason = "IMAGE_INVALID", .detail = "", .permanent = true};
  bench.Desire(0, {1});
  EXPECT_EQ(bench.Told(1), "FAILED IMAGE_INVALID") << "at once";
  bench.Pass(29'000);
  EXPECT_EQ(bench.fetches_, 1);
  bench.Pass(1'000);
  EXPECT_EQ(bench.fetches_, 2);
}

TEST(Fetching, OneThatIsCancelledEndsHoweverItIsAnswered) {
  const auto answers = [](OpId op) {
    return std::vector<Event>{FetchFailed{.op = op, .reason = "DISK_FULL", .detail = ""},
                              FetchDone{op, "/math"}, FetchCancelled{op}};
  };
  for (size_t which = 0; which < 3; ++which) {
    Bench bench;
    bench.silent_ = {kFetchEffect, kCancelEffect};
    bench.Desire(0, {1});
    bench.Desire(0, {});
    for (OpId op = 1; op < 20; ++op) bench.Tell(answers(op)[which]);
    bench.Pass(2'000);
    EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kAbsent) << which;
    EXPECT_EQ(bench.deletes_, which == 1 ? 1 : 0);
    bench.silent_.clear();
    bench.Desire(0, {1});
    EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded) << which;
  }
}

TEST(Directories, OneThatAnEarlierProcessLeftBrokenIsFetchedAnew) {
  Bench bench;
  bench.Desire(0, {1});
  bench.Stop();
  bench.hash_matches_ = false;
  bench.engine_.clear();
  bench.boot_ = BootId("boot2");
  bench.Start();
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_EQ(bench.deletes_, 1);
  EXPECT_EQ(bench.fetches_, 2);
  EXPECT_EQ(bench.Told(1), "LOADED") << "what is fetched is proven";
}

TEST(Directories, WhatTheEngineHasOfABrokenOneIsUnloadedFirst) {
  Bench bench;
  bench.Desire(0, {1});
  bench.Stop();
  bench.hash_matches_ = false;
  bench.Start();
  bench.Desire(0, {1});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.fetches_, 2);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Directories, OneThatCannotBeRemovedIsTriedAgainABitLater) {
  Bench bench;
  bench.Desire(0, {1});
  bench.delete_outcome_ = Outcome::kFailed;
  bench.Desire(0, {});
  bench.Pass(4'000);
  EXPECT_GE(bench.deletes_, 2);
  EXPECT_LE(bench.deletes_, 5);
  EXPECT_TRUE(bench.records_.contains("name/" + Bench::NameOf(1).value));
  bench.delete_outcome_ = Outcome::kOk;
  bench.Pass(2'000);
  EXPECT_FALSE(bench.records_.contains("name/" + Bench::NameOf(1).value));
}

// --- what the journal keeps

TEST(Journal, IsTheSameAfterARestartWithItsTermAndItsNames) {
  Bench bench;
  bench.Desire(1, {1});
  const fleet::Observed before = bench.machine_->Observe();
  bench.Stop();
  Config config;
  config.member = MemberId("e1");
  config.pool = bench.pool_;
  config.new_journal = JournalId("j2");
  const Machine next = *Machine::Restore(config, bench.records_, 0);
  EXPECT_EQ(next.journal(), JournalId("j1"));
  EXPECT_EQ(next.term(), (Term{1, 1}));
  EXPECT_EQ(std::get<NameRecord>(bench.records_.at("name/" + Bench::NameOf(1).value)).key,
            before.residencies.at(0).key);
  EXPECT_EQ(next.Observe().residencies.at(0).key, before.residencies.at(0).key);
}

TEST(Journal, OfAnotherMemberIsRefused) {
  Bench bench;
  Config config;
  config.member = MemberId("e2");
  EXPECT_EQ(ReasonOf(Machine::Restore(config, bench.records_, 0).status()), "JOURNAL_FOREIGN");
}

TEST(Journal, RecordsUnderEachOthersKeysAreRefused) {
  Bench bench;
  bench.Desire(1, {1});
  Config config;
  config.member = MemberId("e1");
  for (const std::string prefix : {"row/", "name/"}) {
    Records swapped = bench.records_;
    for (const auto& [key, value] : bench.records_) {
      if (key.starts_with(prefix)) swapped["elsewhere/" + key.substr(prefix.size())] = value;
    }
    EXPECT_EQ(ReasonOf(Machine::Restore(config, swapped, 0).status()), "RECORDS_INVALID") << prefix;
  }
}

TEST(Journal, AWedgedEngineIsKnownToTheNextProcess) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "ENGINE_TIMEOUT", ""};
  bench.Desire(0, {1, 2, 3});
  ASSERT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  bench.Stop();
  bench.Start();
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  bench.Desire(0, {});
  bench.Pass(10'000);
  EXPECT_TRUE(bench.records_.contains("name/" + Bench::NameOf(3).value)) << "it may yet be read";
}

TEST(Ready, IsThereWhenSomethingIsToBeWrittenOrDone) {
  Config config;
  config.member = MemberId("e1");
  config.new_journal = JournalId("j1");
  Machine machine = *Machine::Restore(config, {}, 0);
  EXPECT_TRUE(machine.HasReady()) << "its journal";
  EXPECT_FALSE(machine.TakeReady().records.empty());
  EXPECT_FALSE(machine.HasReady());
  machine.Step(1, SessionUp{});
  EXPECT_TRUE(machine.HasReady()) << "what it observes";
  EXPECT_TRUE(machine.TakeReady().records.empty());
}

}  // namespace
}  // namespace lorry::proxy
