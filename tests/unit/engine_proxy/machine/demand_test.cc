// Adapters that are loaded on demand: more of them than the engine has slots.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::RowMode;

// Version 1 of some adapters in a row each, on an engine with three slots, one of which is for what
// must be loaded next.
class DemandTest : public ::testing::Test {
 protected:
  DemandTest() : bench_(fleet::EngineKind::kVllm, /*slots=*/3) {}

  static EngineName NameOf(const std::string& adapter, uint64_t number = 1) {
    return EngineName(adapter + "-v" + std::to_string(number) + "-0123456789ab");
  }
  fleet::WantedVersion Wanted(const std::string& adapter, uint64_t number = 1) const {
    fleet::WantedVersion wanted;
    wanted.name = NameOf(adapter, number);
    wanted.key = {AdapterName(adapter), RunId(1), VersionNumber(number)};
    wanted.on_demand = !resident_.contains(adapter);
    wanted.must = !wanted.on_demand;
    return wanted;
  }
  void Desire(const std::vector<std::string>& adapters,
              const std::vector<fleet::WantedVersion>& besides = {}) {
    fleet::Desired desired;
    desired.term = Term{1, 1};
    desired.revision = Revision(++revision_);
    desired.journal = bench_.machine_->journal();
    desired.wanted = besides;
    for (const std::string& adapter : adapters) {
      desired.wanted.push_back(Wanted(adapter));
      desired.rows.push_back({AdapterName(adapter),
                              RowMode::kOpen,
                              epoch_,
                              NameOf(adapter),
                              Bench::kHoldForMs,
                              Epoch(),
                              {}});
    }
    std::ranges::sort(desired.wanted, {}, &fleet::WantedVersion::name);
    bench_.Tell(DesiredReceived{desired});
    bench_.Wait(2'000);  // no name is unloaded twice within a second
  }
  // Requests come for adapters that are away.
  void Ask(const std::string& adapter) {
    bench_.waiting_.emplace_back(adapter);
    bench_.Report();
  }
  // Those that waited for it begin, and more come.
  void Begin(const std::string& adapter, uint32_t requests = 1) {
    std::erase(bench_.waiting_, AdapterName(adapter));
    bench_.counts_[NameOf(adapter)] = requests;
    bench_.last_admitted_[NameOf(adapter)] = ++admitted_;
    bench_.Report();
  }
  void End(const std::string& adapter) {
    bench_.counts_.erase(NameOf(adapter));
    bench_.Report();
  }
  const DoorRow& RowOf(const std::string& adapter) const {
    return *bench_.machine_->door_table().FindRow(AdapterName(adapter));
  }
  // Adapters whose version 1 the door routes, in order.
  std::string Resident() const {
    std::string names;
    for (const DoorRoute& route : bench_.machine_->door_table().routes)
      names += (names.empty() ? "" : " ") + route.key.adapter.value;
    return names;
  }

  Bench bench_;
  std::set<std::string> resident_;
  Epoch epoch_ = Epoch(1);  // of all decisions

 private:
  uint64_t revision_ = 0;
  uint64_t admitted_ = 0;
};

TEST_F(DemandTest, EachIsLoadedAndProvenOnceAndEveryRowOpens) {
  Desire({"a", "b", "c", "d", "e"});
  EXPECT_EQ(bench_.loads_.size(), 5u);
  EXPECT_EQ(bench_.probes_.size(), 5u);
  EXPECT_EQ(bench_.unloads_, 2);
  for (const std::string adapter : {"a", "b", "c", "d", "e"}) {
    EXPECT_EQ(RowOf(adapter).mode, RowMode::kOpen) << adapter;
    EXPECT_EQ(RowOf(adapter).target, NameOf(adapter));
    EXPECT_TRUE(RowOf(adapter).on_demand);
  }
  EXPECT_EQ(Resident(), "c d e");
}

TEST_F(DemandTest, ARequestBringsItBackAndTheOneThatWasAskedLeastRecentlyLeaves) {
  Desire({"a", "b", "c", "d"});
  ASSERT_EQ(Resident(), "b c d");
  for (const std::string adapter : {"d", "c", "b"}) {
    Begin(adapter);
    End(adapter);
  }
  Ask("a");
  EXPECT_EQ(Resident(), "a b") << "one slot stays free for what must be loaded next";
  EXPECT_EQ(bench_.fetches_, 4) << "its files stayed";
}

TEST_F(DemandTest, NobodyLeavesWhileItIsInUseOrItsRequestsHaveNotBegun) {
  Desire({"a", "b", "c", "d"});
  Begin("b");
  Begin("c");
  Begin("d");
  Ask("a");
  EXPECT_EQ(Resident(), "b c d");
  End("c");
  End("d");
  ASSERT_EQ(Resident(), "a b");
  Ask("c");
  EXPECT_EQ(Resident(), "a b") << "what waited for a has not begun";
  Begin("a");
  End("a");
  EXPECT_EQ(Resident(), "b c");
}

TEST_F(DemandTest, ThoseThatWaitAreServedInTheirOrder) {
  Desire({"a", "b", "c", "d", "e"});
  for (const std::string adapter : {"c", "d", "e"}) Begin(adapter);
  Ask("b");
  Ask("a");
  End("c");
  End("d");
  EXPECT_EQ(Resident(), "b e");
  Begin("b");
  End("b");
  EXPECT_EQ(Resident(), "a e");
}

TEST_F(DemandTest, WhatABatchNeedsTogetherStaysUntilAllOfItIsThere) {
  Desire({"a", "b", "c", "d"});
  Ask("d");
  Ask("a");
  EXPECT_EQ(Resident(), "a d") << "d waits for a";
  Begin("d");
  End("d");
  Begin("a");
  End("a");
  for (const std::string adapter : {"b", "a", "d", "c"}) bench_.waiting_.emplace_back(adapter);
  bench_.Report();  // one batch of b and a, and behind it one of d and c
  EXPECT_EQ(Resident(), "a b") << "d is there, and its batch comes later";
  Begin("b");
  Begin("a");
  End("b");
  End("a");
  bench_.Pass(1'000);  // no name is unloaded twice within a second
  EXPECT_EQ(Resident(), "c d");
}

TEST_F(DemandTest, AdaptersInUseGiveWayToOneThatHasWaited) {
  Desire({"a", "b", "c", "d"});
  for (const std::string adapter : {"b", "c", "d"}) Begin(adapter, 5);
  Ask("a");
  bench_.Pass(500);
  ASSERT_EQ(Resident(), "b c d");
  bench_.Pass(500);
  EXPECT_EQ(Resident(), "c d") << "the one that was loaded first takes no new request";
  EXPECT_EQ(bench_.engine_.size(), 3u) << "and ends what it has";
  bench_.Pass(1'000);
  EXPECT_EQ(Resident(), "d");
  Ask("b");
  End("b");
  End("c");
  ASSERT_EQ(Resident(), "a d") << "b asks behind a";
  Begin("a");
  End("a");
  EXPECT_EQ(Resident(), "b d");
}

TEST_F(DemandTest, WhoeverGaveWayGoesOnOnceNobodyNeedsItsSlot) {
  Desire({"a", "b", "c", "d"});
  for (const std::string adapter : {"b", "c", "d"}) Begin(adapter);
  Ask("a");
  bench_.Pass(1'000);
  ASSERT_EQ(Resident(), "c d");
  bench_.waiting_.clear();
  bench_.Report();
  EXPECT_EQ(Resident(), "b c d");
  EXPECT_EQ(bench_.unloads_, 1);
}

TEST_F(DemandTest, ARowFollowsADecisionForWhatItStandsOnThoughThatIsAway) {
  Desire({"a", "b", "c", "d"});
  ASSERT_EQ(Resident(), "b c d");
  epoch_ = Epoch(2);  // a rollback to the same versions, or records that were lost and adopted
  Desire({"a", "b", "c", "d"});
  EXPECT_EQ(RowOf("a").epoch, Epoch(2));
  EXPECT_EQ(RowOf("a").mode, RowMode::kOpen);
  EXPECT_EQ(Resident(), "b c d") << "nothing is loaded for it";
}

TEST_F(DemandTest, ASyncIsNotKeptWaitingByWhatIsInUse) {
  Desire({"a", "b", "c"});
  for (const std::string adapter : {"a", "b", "c"}) Begin(adapter);
  fleet::WantedVersion next = Wanted("d");
  next.must = true;
  Desire({"a", "b", "c"}, {next});
  EXPECT_EQ(Resident(), "a b c");
  bench_.Pass(1'000);
  End("a");
  EXPECT_EQ(Resident(), "b c d");
}

TEST_F(DemandTest, SyncsAndRequestsTakeTurns) {
  Desire({"a", "b", "c", "d"});
  const size_t before = bench_.loads_.size();
  bench_.Tell(EngineLost{});  // nothing is asked of it meanwhile
  Ask("a");
  std::vector<fleet::WantedVersion> next = {Wanted("x"), Wanted("y")};
  for (fleet::WantedVersion& wanted : next) wanted.must = true;
  Desire({"a", "b", "c", "d"}, next);
  bench_.silent_ = {kTableEffect};
  bench_.See();
  ASSERT_EQ(bench_.unloads_, 2) << "of the two that make room for a, one is gone";
  ASSERT_EQ(bench_.loads_.size(), before)
      << "the other will be, as soon as the door has heard of it";
  bench_.silent_.clear();
  bench_.Report();
  std::string loads;
  for (size_t i = before; i < bench_.loads_.size(); ++i)
    loads += bench_.loads_[i].value.substr(0, 1);
  EXPECT_EQ(loads, "axy") << "the last one to be loaded before was a sync's";
}

TEST_F(DemandTest, ASyncDoesNotWaitForItsTurnWhileTheEngineLetsNothingGo) {
  Desire({"a", "b", "c", "d"});
  bench_.unload_outcome_ = Outcome::kRefused;
  bench_.keeps_ = {NameOf("b"), NameOf("c"), NameOf("d")};
  bench_.engine_.erase(NameOf("d"));  // somebody unloaded it by hand
  bench_.See();
  bench_.Pass(6'000);
  Ask("a");
  std::vector<fleet::WantedVersion> next = {Wanted("x")};
  next[0].must = true;
  Desire({"a", "b", "c", "d"}, next);
  EXPECT_NE(std::ranges::find(bench_.loads_, NameOf("x")), bench_.loads_.end());
}

TEST_F(DemandTest, WhatMustBeLoadedNeverLeavesAndWhoWaitsIsToldWhy) {
  resident_ = {"x", "y"};
  Desire({"x", "y", "a", "b"});
  ASSERT_EQ(Resident(), "b x y");
  Ask("a");
  bench_.Pass(2'000);
  EXPECT_EQ(Resident(), "b x y") << "nobody leaves in vain: the last slot is for the next version";
  EXPECT_EQ(RowOf("a").waits_for,
            "the engine's 3 adapter slots are held by b-v1-0123456789ab, x-v1-0123456789ab, "
            "y-v1-0123456789ab");
}

TEST_F(DemandTest, ALoadOnDemandThatKillsTheEngineIsBlamed) {
  Desire({"a", "b", "c", "d"});
  bench_.silent_ = {kLoadEffect};
  Ask("a");
  ASSERT_EQ(bench_.loads_.size(), 4u);
  bench_.silent_.clear();
  bench_.Reboot();
  const std::vector<fleet::Killer> killers = bench_.machine_->Observe().killers;
  ASSERT_EQ(killers.size(), 1u);
  EXPECT_EQ(killers[0].name, NameOf("a"));
  EXPECT_EQ(Resident().find('a'), std::string::npos)
      << "nobody has said that it may be tried again";
  EXPECT_EQ(RowOf("a").mode, RowMode::kOpen) << "requests wait, and are served by nothing else";
  EXPECT_EQ(RowOf("a").waits_for,
            "this engine may not load it now: an engine died of it, or another one tries it first");
}

TEST_F(DemandTest, AReportThatWasOvertakenChangesNothing) {
  Desire({"a", "b", "c", "d"});
  const Revision now = bench_.machine_->door_table().revision;
  bench_.Tell(DoorReport{.revision = now, .in_flight = {}, .sequence = 2});
  bench_.Tell(
      DoorReport{.revision = now, .in_flight = {}, .waiting = {AdapterName("a")}, .sequence = 1});
  EXPECT_EQ(bench_.machine_->door_table().revision, now);
}

// It would be probed once the pause is over, which the framework's own adapter is to be loaded under.
TEST_F(DemandTest, WhatSurvivedARestartMakesRoomUnderAFrameworksPauseThoughItIsNotProbedYet) {
  bench_.files_ = {{"/d/one", "1"}};
  Desire({"b", "c"});
  resident_ = {"a"};
  Desire({"a", "b", "c"});
  ASSERT_EQ(Resident(), "a b c");
  bench_.silent_ = {kProbeEffect};
  bench_.Start();
  Desire({"a", "b", "c"});
  bench_.Tell(CallMade{100, PauseCall{}});
  bench_.Pass(Config{}.orphans_ms);
  for (OpId op = 1; op < 50; ++op) bench_.Tell(ProbeDone{.op = op, .outcome = Outcome::kOk});
  ASSERT_EQ(Resident(), "a");
  bench_.silent_ = {};
  bench_.Tell(BindAsked{1, "lora", "/d/one"});
  bench_.Pass(2'000);
  ASSERT_EQ(bench_.bind_answers_.count(1), 1u);
  EXPECT_EQ(bench_.bind_answers_[1].answer, BindAnswer::kDone);
}

}  // namespace
}  // namespace lorry::proxy
