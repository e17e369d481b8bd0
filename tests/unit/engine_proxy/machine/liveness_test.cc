// That nothing is lost, stuck or silent: over restarts, lost connections, moves between pools.
#include "gtest/gtest.h"
#include "tests/unit/engine_proxy/machine/bench.h"

namespace lorry::proxy {
namespace {

using fleet::MemberHealth;
using fleet::RowMode;

TEST(Survivors, ARowThatMissedADecisionServesWhatSurvivedUntilTheNewOneIsHere) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Stop();
  bench.fetch_failure_ = FetchFailed{.reason = "", .detail = "", .away = true};
  bench.silent_ = {kProbeEffect};  // the survivor is not verified yet when the decision comes
  bench.Start();
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1)) << "it is not given up";
  EXPECT_EQ(bench.unloads_, 0);
  bench.Stop();
  bench.silent_.clear();
  bench.Start();
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1));
  EXPECT_EQ(bench.TheRow().epoch, Epoch(1));
  bench.fetch_failure_.reset();
  bench.Pass(5'000);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
  EXPECT_EQ(bench.TheRow().epoch, Epoch(2));
}

TEST(Survivors, ARowWhoseVersionDidNotSurviveCloses) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Stop();
  bench.fetch_failure_ = FetchFailed{.reason = "", .detail = "", .away = true};
  bench.engine_.clear();
  bench.load_answer_ = LoadDone{0, Outcome::kFailed, "ENGINE_LOAD_FAILED", ""};
  bench.Start();
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, RowMode::kClosed);
  EXPECT_EQ(bench.TheRow().target, EngineName());
}

// Version 2 takes the place of version 1, whose unload is sent and not answered.
void LeaveUnloadUnanswered(Bench& bench) {
  bench.Desire(1, {1});
  bench.silent_ = {kUnloadEffect};
  bench.Desire(2, {2});
  bench.Pass(5'000);
  ASSERT_TRUE(bench.records_.contains("unloading"));
}

TEST(Unload, OneThatHangsIsFoundAgainAfterARestart) {
  Bench bench(fleet::EngineKind::kSglang);
  LeaveUnloadUnanswered(bench);
  const Tick until = std::get<UnloadingRecord>(bench.records_.at("unloading")).until_tick;
  bench.Wait(5'000);
  bench.Stop();
  bench.silent_.clear();
  bench.unload_outcome_ = Outcome::kUnknown;
  bench.Start();
  EXPECT_EQ(bench.unloads_, 1) << "it is asked for again";
  EXPECT_EQ(bench.unload_deadline_ms_, until - bench.now()) << "with what is left of its deadline";
  EXPECT_EQ(bench.machine_->Observe().health, MemberHealth::kWedged);
  EXPECT_FALSE(bench.records_.contains("unloading"));
}

TEST(Unload, OneWhoseDeadlinePassedMeanwhileHasASecondToShowThatItIsDone) {
  Bench bench(fleet::EngineKind::kSglang);
  LeaveUnloadUnanswered(bench);
  bench.Wait(60'000);
  bench.Stop();
  bench.silent_.clear();
  bench.Start();
  EXPECT_EQ(bench.unload_deadline_ms_, 1'000);
  bench.Desire(2, {2});
  EXPECT_EQ(bench.machine_->Observe().health, MemberHealth::kReady);
  EXPECT_FALSE(bench.records_.contains("unloading"));
  EXPECT_EQ(bench.Told(2), "LOADED");
}

TEST(Unload, WithoutAnAnswerKeepsTheDirectoryOverARestart) {
  Bench bench(fleet::EngineKind::kVllm);
  LeaveUnloadUnanswered(bench);
  bench.Stop();
  bench.asleep_ = true;  // nothing is asked for again
  bench.engine_.clear();
  bench.Start();
  bench.Desire(2, {2});
  bench.Pass(5'000);
  EXPECT_TRUE(bench.records_.contains("name/" + Bench::NameOf(1).value))
      << "a load may stand before it";
}

TEST(Unload, OfAnotherBootIsForgotten) {
  Bench bench(fleet::EngineKind::kSglang);
  LeaveUnloadUnanswered(bench);
  bench.Stop();
  bench.silent_.clear();
  bench.boot_ = BootId("boot2");
  bench.engine_.clear();
  bench.Start();
  EXPECT_FALSE(bench.records_.contains("unloading"));
  bench.Desire(2, {2});
  EXPECT_EQ(bench.Told(2), "LOADED");
}

TEST(Pool, AnEngineThatMovedBeginsAsANewcomer) {
  Bench bench;
  bench.Desire(7, {1});
  bench.Stop();
  bench.pool_ = PoolName("eval");
  bench.Start();
  bench.Desire(2, {2});  // that pool is at a lower epoch
  EXPECT_EQ(bench.TheRow().mode, RowMode::kOpen);
  EXPECT_EQ(bench.TheRow().epoch, Epoch(2));
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
  bench.Stop();
  bench.Start();  // and stays there
  EXPECT_EQ(bench.TheRow().epoch, Epoch(2));
}

TEST(Fetching, AnEngineThatIsDownFillsNothing) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(EngineLost{.ended = true, .why = "refused"});
  for (uint64_t number = 2; number < 33; ++number) bench.Desire(number, {number});
  size_t kept = 0;
  for (const auto& [key, record] : bench.records_) kept += key.starts_with("name/") ? 1 : 0;
  EXPECT_LE(kept, 2u) << "the newest, and the one that the engine may have";
}

TEST(Fetching, IsCancelledWhereTheEngineLoadsTheNameByItself) {
  Bench bench;
  bench.silent_ = {kFetchEffect};
  bench.Desire(0, {1});
  ASSERT_EQ(bench.Told(1), "FETCHING");
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.silent_.clear();
  bench.Pass(6'000);
  EXPECT_EQ(bench.cancels_, 1);
  bench.Pass(6'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Fetching, DoesNotBeginWhileTheEngineMayStillListTheName) {
  Bench bench;
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Pass(6'000);
  bench.Desire(0, {1});
  ASSERT_EQ(bench.unloads_, 0) << "an earlier process may have let requests in";
  bench.silent_ = {kListEffect};
  bench.asleep_ = true;
  bench.See();  // what was listed is not believed any more
  EXPECT_EQ(bench.fetches_, 0) << "the engine may read what would be written";
  bench.silent_.clear();
  bench.asleep_ = false;
  bench.Look(2);
  for (OpId op = 1; op < 50; ++op) bench.Tell(Listed{op, Outcome::kOk, bench.engine_});
  bench.Pass(6'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.Told(1), "LOADED");
}

TEST(Fetching, BeginsWhereTheEngineThatListedTheNameHasEnded) {
  Bench bench;
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Pass(6'000);
  bench.Desire(0, {1});
  ASSERT_EQ(bench.fetches_, 0);
  bench.Tell(EngineLost{.ended = true, .why = "refused"});
  EXPECT_EQ(bench.fetches_, 1);
}

TEST(Hello, HasWhatIsSoAndNotWhatWasLastSentInASession) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(SessionDown{});
  bench.Tell(EngineLost{.ended = true, .why = "refused"});
  EXPECT_EQ(bench.sent_.boot, BootId());
  EXPECT_EQ(bench.sent_.health, MemberHealth::kJoining);
  EXPECT_EQ(bench.sent_.sequence, bench.machine_->Observe().sequence);
}

TEST(Health, AFrozenEngineIsNotReady) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  EXPECT_EQ(bench.machine_->Observe().health, MemberHealth::kJoining);
  EXPECT_TRUE(bench.Routed(1)) << "the engine's own errors pass";
  bench.See();
  EXPECT_EQ(bench.machine_->Observe().health, MemberHealth::kReady);
}

DoorRow Door(const Bench& bench) { return bench.machine_->door_table().rows.at(0); }

TEST(Health, TheDoorSaysOfAClosedRowWhatStatusSaysOfTheEngine) {
  Bench bench;
  bench.silent_ = {kLoadEffect};
  bench.Desire(1, {1});
  ASSERT_TRUE(Door(bench).catching_up);
  EXPECT_EQ(Door(bench).waits_for, "") << "it loads, as every version does at first";
  bench.Tell(EngineLost{.ended = false, .why = "ENGINE_TIMEOUT"});
  EXPECT_EQ(Door(bench).waits_for, "the engine does not answer: ENGINE_TIMEOUT");
  EXPECT_EQ(bench.machine_->Observe().health_detail, Door(bench).waits_for);
  bench.See();
  EXPECT_EQ(Door(bench).waits_for, "");
}

TEST(Health, TheDoorSaysWhyTheDecidedVersionFailed) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kFailed, "ENGINE_LOAD_FAILED", "no memory"};
  bench.Desire(1, {1});
  ASSERT_TRUE(Door(bench).catching_up);
  EXPECT_EQ(Door(bench).waits_for, "it failed here: ENGINE_LOAD_FAILED, no memory");
}

TEST(Health, TheDoorSaysWhyALoadIsPutOff) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnsent, "FOLLOWER_FETCHES", "follower b:1"};
  bench.Desire(1, {1});
  ASSERT_TRUE(Door(bench).catching_up);
  EXPECT_EQ(Door(bench).waits_for,
            "its load is tried again in a moment: FOLLOWER_FETCHES, follower b:1");
}

// Another takes the slot, and the follower has long got the files.
TEST(Health, WhyALoadWasPutOffIsNotToldOnceItIsDueAgain) {
  Bench bench(fleet::EngineKind::kSglang, /*slots=*/1);
  bench.load_answer_ = LoadDone{0, Outcome::kUnsent, "FOLLOWER_FETCHES", "follower b:1"};
  bench.Desire(1, {1});
  ASSERT_EQ(bench.Told(1), "FETCHED FOLLOWER_FETCHES");
  bench.load_answer_.reset();
  bench.Desire(2, {1, 2});
  ASSERT_EQ(bench.Told(2), "LOADED");
  bench.Pass(5'000);
  EXPECT_EQ(bench.Told(1), "FETCHED");
}

TEST(Health, TheDoorSaysThatTheDecidedVersionHasNoSlot) {
  Bench bench(fleet::EngineKind::kSglang, /*slots=*/1);
  bench.engine_[EngineName("theirs")] = "/theirs";
  bench.Start();
  bench.Desire(1, {1});
  ASSERT_TRUE(Door(bench).catching_up);
  EXPECT_EQ(bench.Told(1), "FETCHED NO_SLOT");
  EXPECT_NE(Door(bench).waits_for.find("--max-loaded-loras"), std::string::npos);
}

}  // namespace
}  // namespace lorry::proxy
