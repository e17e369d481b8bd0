// Engines that are full of what an earlier process has loaded and nobody wants, and frameworks that
// pause them and then bind a name of theirs: who makes room for it, and when.
#include <set>
#include <utility>

#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::EngineKind;
using fleet::PauseKind;

constexpr uint32_t kSlots = 3;
constexpr int64_t kLongMs = 30'000;  // below what a call to bind waits for
const Config kDefaults;

class Full {
 public:
  explicit Full(EngineKind kind, std::set<uint64_t> leased = {}) : bench_(kind, kSlots) {
    bench_.files_ = {{"/d/one", "one"}};
    bench_.leased_ = std::move(leased);
    bench_.WantBeside(fleet::RowMode::kClosed, 1, {1, 2, 3});
    EXPECT_EQ(bench_.engine_.size(), kSlots);
    bench_.Desire(0, {1, 2, 3});
  }
  // Another process begins with the journal, and the engine does not say what it is busy with.
  void Restart(std::set<size_t> silent = {kEngineLoadEffect}) {
    bench_.Stop();
    bench_.silent_ = std::move(silent);
    bench_.Start();
    bench_.Desire(0, {});
    began_at_ = bench_.now();
  }
  // So does one without it, of another fleet.
  void LoseJournal() {
    bench_.records_.clear();
    Restart();
  }
  void Pause(PauseKind kind, Outcome outcome = Outcome::kOk) {
    bench_.pause_outcome_ = outcome;
    bench_.Call(PauseCall{kind});
  }
  void Continue() { bench_.Call(ContinueCall{}); }
  void Bind() {
    bench_.PassAsAsked(1'000);
    bench_.Tell(BindAsked{1, "a", "/d/one"});
    bench_.Tell(SessionDown{});
  }
  bool IsBoundAfter(int64_t ms) {
    bench_.PassAsAsked(began_at_ + ms - bench_.now());
    const auto answer = bench_.bind_answers_.find(1);
    return answer != bench_.bind_answers_.end() && answer->second.answer == BindAnswer::kDone;
  }
  // Nobody makes room under the pause, and it was the pause that kept them from it.
  bool WaitsForTheEndOfThePause() {
    if (IsBoundAfter(kLongMs) || bench_.unloads_ > 0) return false;
    Continue();
    return IsBoundAfter(kLongMs + 2 * kDefaults.orphans_ms);
  }

  Bench bench_;

 private:
  Tick began_at_ = 0;
};

TEST(Leftovers, LeaveUnderAPauseThatHasEndedAllRequestsOnceNoneCanBeOnItsWay) {
  for (const EngineKind kind : {EngineKind::kSglang, EngineKind::kVllm}) {
    Full full(kind);
    full.LoseJournal();
    full.Pause(PauseKind::kAbort);
    full.Bind();
    EXPECT_FALSE(full.IsBoundAfter(kDefaults.orphans_ms - 1));
    EXPECT_EQ(full.bench_.unloads_, 0);
    EXPECT_TRUE(full.IsBoundAfter(kDefaults.orphans_ms));
    EXPECT_EQ(full.bench_.unloads_, 3) << "nobody wants any";
  }
}

TEST(Leftovers, NobodyElseWakesWhoeverWaitsForThem) {
  Full full(EngineKind::kSglang);
  full.Restart({kListEffect, kEngineLoadEffect});
  full.Pause(PauseKind::kAbort);
  full.bench_.PassAsAsked(700);  // the next list is due later than they are
  full.bench_.silent_.erase(kListEffect);
  for (OpId op = 1; op < 50; ++op) full.bench_.Tell(Listed{op, Outcome::kOk, full.bench_.engine_});
  full.Bind();
  EXPECT_FALSE(full.IsBoundAfter(kDefaults.orphans_ms - 1));
  EXPECT_TRUE(full.IsBoundAfter(kDefaults.orphans_ms));
}

TEST(Leftovers, AlsoOfAProcessThatLeftItsJournalAndWhateverPauseComesOnTop) {
  Full full(EngineKind::kSglang);
  full.Restart();
  full.Pause(PauseKind::kAbort);
  full.Pause(PauseKind::kRetract);
  full.Pause(PauseKind::kInPlace, Outcome::kUnknown);
  full.Bind();
  EXPECT_TRUE(full.IsBoundAfter(kDefaults.orphans_ms));
}

TEST(Leftovers, AlsoUnderOneThatWaitedForAllRequests) {
  Full full(EngineKind::kVllm);
  full.Restart();
  full.Pause(PauseKind::kWait);
  full.Bind();
  EXPECT_TRUE(full.IsBoundAfter(kDefaults.orphans_ms));
}

TEST(Leftovers, WaitForTheEndOfAPauseThatFreezesRequests) {
  for (const auto& [kind, pause] : {std::pair(EngineKind::kSglang, PauseKind::kRetract),
                                    std::pair(EngineKind::kSglang, PauseKind::kInPlace),
                                    std::pair(EngineKind::kVllm, PauseKind::kKeep)}) {
    Full full(kind);
    full.Restart();
    full.Pause(pause);
    full.Bind();
    EXPECT_TRUE(full.WaitsForTheEndOfThePause());
  }
}

TEST(Leftovers, AnAbortOverFrozenRequestsEndsThemOnceTheEngineSaysSo) {
  for (const Outcome outcome : {Outcome::kOk, Outcome::kFailed, Outcome::kUnknown}) {
    Full full(EngineKind::kVllm);
    full.Restart();
    full.Pause(PauseKind::kKeep);
    full.Pause(PauseKind::kAbort, outcome);
    full.Bind();
    const bool is_over = outcome == Outcome::kOk;
    EXPECT_EQ(is_over, !full.WaitsForTheEndOfThePause());
  }
}

TEST(Leftovers, AnEarlierPauseSaysNothingOfALaterOne) {
  Full full(EngineKind::kSglang);
  full.Restart();
  full.Pause(PauseKind::kAbort);
  full.Continue();
  full.Pause(PauseKind::kRetract);
  full.Bind();
  EXPECT_TRUE(full.WaitsForTheEndOfThePause());
}

// They may have come under the pause, and wait in the engine for its end.
TEST(Leftovers, WaitForTheEndOfAnEarlierProcessesPauseThoughItIsAskedForAgain) {
  for (const bool again : {false, true}) {
    Full full(EngineKind::kSglang);
    full.Pause(PauseKind::kAbort);
    full.Restart();
    if (again) full.Pause(PauseKind::kAbort);
    full.Bind();
    EXPECT_TRUE(full.WaitsForTheEndOfThePause());
  }
}

TEST(Leftovers, WaitForItsEndWhileTheEngineIsAskedAgainAndShowsNoneOfThem) {
  Full full(EngineKind::kVllm);
  full.Pause(PauseKind::kKeep);
  full.Restart();
  full.bench_.silent_ = {kPauseEffect};
  full.bench_.Call(PauseCall{PauseKind::kAbort});
  full.Bind();
  EXPECT_FALSE(full.IsBoundAfter(kLongMs / 2));
  for (OpId op = 1; op < 200; ++op) full.bench_.Tell(PauseDone{op, Outcome::kFailed});
  EXPECT_TRUE(full.WaitsForTheEndOfThePause());
}

TEST(Leftovers, OneThatWasToLeaveUnderThePauseWhenItsProcessEndedIsAskedForAgain) {
  Full full(EngineKind::kSglang);
  full.LoseJournal();
  full.Pause(PauseKind::kAbort);
  full.Bind();
  full.bench_.silent_.insert(kUnloadEffect);
  EXPECT_FALSE(full.IsBoundAfter(kDefaults.orphans_ms));
  full.Restart();
  EXPECT_EQ(full.bench_.unloads_, 1);
  full.Bind();
  EXPECT_TRUE(full.IsBoundAfter(kDefaults.orphans_ms)) << "into its slot";
}

// Whoever was leased a name may call the engine under a pause as before, and waits there for its end.
TEST(Leftovers, WhatWasLeasedWaitsForTheEndOfThePause) {
  Full full(EngineKind::kSglang, {1, 2, 3});
  full.Restart();
  full.Pause(PauseKind::kAbort);
  full.Bind();
  EXPECT_FALSE(full.IsBoundAfter(kDefaults.drain_ms + kLongMs));
  EXPECT_EQ(full.bench_.unloads_, 0);
}

}  // namespace
}  // namespace lorry::proxy
