// A member whose proxy drains leaves the roster: nothing waits for it, and nothing is counted of it.
#include "lib/base/error.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

constexpr const char* kAll[] = {"e1", "e2", "e3"};

class Goodbye : public ::testing::Test {
 protected:
  void Begin(const fleet::AdapterPolicy& policy) {
    fleet_.Policy(policy);
    for (const char* id : kAll) fleet_.Join(id);
    fleet_.Publish(1);
    for (int step = 0; step < 6; ++step) Obey();
    ASSERT_EQ(fleet_.Committed(), 1U);
  }
  void Obey() {
    for (const char* id : kAll) {
      if (IsOnRoster(id)) fleet_.Obey(id);
    }
  }
  void SayGoodbye(const std::string& id) {
    fleet_.Of(id).leaves = true;
    fleet_.Report(id);
  }
  bool IsOnRoster(const std::string& id) const {
    return fleet_.records_.contains(MemberKey(MemberId(id)).text);
  }
  static fleet::AdapterPolicy Barrier() {
    fleet::AdapterPolicy policy;
    policy.mode = fleet::SyncMode::kBarrier;
    return policy;
  }

  Fleet fleet_;
};

TEST_F(Goodbye, TakesAMemberOffTheRosterAndIsAnswered) {
  Begin({});
  SayGoodbye("e2");
  EXPECT_FALSE(IsOnRoster("e2"));
  EXPECT_EQ(fleet_.Status().members.size(), 2U);
  ASSERT_EQ(fleet_.ended_.size(), 1U);
  EXPECT_TRUE(fleet_.ended_.back().status.ok());
  EXPECT_EQ(fleet_.ended_.back().session, fleet_.SessionOf(MemberId("e2")));
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});  // the stream's end, which follows
}

TEST_F(Goodbye, TellsNothingOfATryThatWentWithAnEarlierJournal) {
  for (const char* id : kAll) fleet_.Join(id);
  const VersionKey key = fleet_.Publish(1);
  fleet_.Set("e1", key, fleet::ResidencyState::kLoading);
  ASSERT_EQ(fleet_.Loaders(1), 1U);
  fleet_.Evict("e1");
  fleet_.Of("e1").boot = BootId();
  fleet_.Attach("e1");
  SayGoodbye("e1");
  ASSERT_FALSE(IsOnRoster("e1"));
  fleet_.Set("e2", key, fleet::ResidencyState::kLoading);
  fleet_.Die("e2", key);
  EXPECT_FALSE(fleet_.Verdicts().empty()) << "two lives, as far as anybody knows";
  EXPECT_FALSE(fleet_.MayLoad("e3", 1));
}

// Its proxy alone is started again, and its engine goes on loading.
class GoodbyeInATry : public Goodbye {
 protected:
  GoodbyeInATry() {
    for (const char* id : kAll) fleet_.Join(id);
    key_ = fleet_.Publish(1);
    fleet_.Alias("eval", key_);
    fleet_.Set("e1", key_, fleet::ResidencyState::kLoading);
    SayGoodbye("e1");
  }
  void IsBack() {
    fleet_.Of("e1").leaves = false;
    fleet_.Attach("e1");
    fleet_.Report("e1");
  }
  VersionKey key_;
};

TEST_F(GoodbyeInATry, TheVersionCostsTwoEnginesAllTheSame) {
  ASSERT_TRUE(fleet_.MayLoad("e2", 1));
  fleet_.Die("e2", key_);
  EXPECT_FALSE(fleet_.MayLoad("e2", 1)) << "the engine of e1 may yet die";
  EXPECT_FALSE(fleet_.MayLoad("e3", 1));
  IsBack();
  EXPECT_FALSE(fleet_.MayLoad("e3", 1));
  EXPECT_TRUE(fleet_.Verdicts().empty());
  fleet_.Die("e1", key_);
  ASSERT_EQ(fleet_.Verdicts().size(), 1U);
  EXPECT_EQ(fleet_.Verdicts()[0].verdict, Verdict::kPoisoned);
}

TEST_F(GoodbyeInATry, SoItIsInTheNextReign) {
  fleet_.Die("e2", key_);
  fleet_.Restart();
  fleet_.Alias("eval", key_);
  for (const char* id : {"e2", "e3"}) fleet_.Rejoin(id, {});
  fleet_.Pass(2 * fleet_.config_.lost_after_ms);
  EXPECT_FALSE(fleet_.MayLoad("e2", 1));
  EXPECT_FALSE(fleet_.MayLoad("e3", 1));
  EXPECT_TRUE(fleet_.Verdicts().empty()) << "it is not LOST";
}

TEST_F(GoodbyeInATry, NobodyWaitsLongerThanALoadTakes) {
  fleet_.Die("e2", key_);
  fleet_.Pass(60'000);
  EXPECT_NE(fleet_.MayLoad("e2", 1), fleet_.MayLoad("e3", 1)) << "one of them";
}

TEST_F(GoodbyeInATry, AnotherEngineThereIsNobodysDeath) {
  for (const bool has_journal : {true, false}) {
    if (!has_journal) fleet_.Evict("e1");
    fleet_.Of("e1").boot = BootId("e1.another");
    fleet_.Of("e1").residencies.clear();
    IsBack();
    EXPECT_TRUE(fleet_.Verdicts().empty());
    fleet_.Set("e2", key_, fleet::ResidencyState::kFetched);
    if (has_journal) SayGoodbye("e1");
  }
  fleet_.Die("e2", key_);
  EXPECT_EQ(fleet_.Loaders(1), 1U);
}

TEST_F(Goodbye, HoldsNoBarrierUp) {
  Begin(Barrier());
  SayGoodbye("e2");
  fleet_.Publish(2);
  for (int step = 0; step < 6; ++step) Obey();
  EXPECT_EQ(fleet_.Committed(), 2U);
}

TEST_F(Goodbye, InTheMiddleOfABarrierIsNotWaitedForEither) {
  for (const SyncPhase phase : {SyncPhase::kHolding, SyncPhase::kLocking}) {
    fleet_ = Fleet();
    Begin(Barrier());
    fleet_.Publish(2);
    for (int step = 0; step < 6 && fleet_.Pool().phase != phase; ++step) Obey();
    ASSERT_EQ(fleet_.Pool().phase, phase);
    SayGoodbye("e3");
    for (int step = 0; step < 3; ++step) Obey();
    EXPECT_EQ(fleet_.Committed(), 2U);
  }
}

TEST_F(Goodbye, IsCountedAmongNoEnginesAnyMore) {
  fleet::AdapterPolicy all;
  all.min_engines = {true, 100};
  Begin(all);
  SayGoodbye("e2");
  fleet_.Publish(2);
  for (int step = 0; step < 3; ++step) Obey();
  EXPECT_EQ(fleet_.Committed(), 2U);
}

TEST_F(Goodbye, DropsOutOfARunningSync) {
  Begin({});
  fleet_.Publish(2);
  fleet_.Obey("e1");
  SayGoodbye("e3");
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  EXPECT_EQ(fleet_.Pool().sync->Find(MemberId("e3"))->dropped, Drop::kLeft);
  for (int step = 0; step < 3; ++step) Obey();
  EXPECT_EQ(fleet_.Committed(), 2U);
}

TEST_F(Goodbye, OfASessionThatIsOverIsNotTaken) {
  Begin({});
  fleet::Observed said = fleet_.Of("e2");
  fleet_.Step(SessionOpened{7, MemberId("e2"), kRollout, said});
  said.leaves = true;
  said.sequence += 5;
  fleet_.Step(MemberObserved{fleet_.SessionOf(MemberId("e2")), said});
  EXPECT_TRUE(IsOnRoster("e2"));
  fleet_.Step(MemberObserved{7, said});
  EXPECT_FALSE(IsOnRoster("e2"));
}

TEST_F(Goodbye, ThatAnEarlierReignTookIsAnsweredAgain) {
  Begin({});
  SayGoodbye("e2");
  fleet_.ended_.clear();
  fleet_.Step(SessionOpened{7, MemberId("e2"), kRollout, fleet_.Of("e2")});
  ASSERT_EQ(fleet_.ended_.size(), 1U);
  EXPECT_TRUE(fleet_.ended_.back().status.ok());
  EXPECT_FALSE(IsOnRoster("e2"));
}

TEST_F(Goodbye, ThatNobodyTookIsTakenByTheNextReign) {
  Begin({});
  fleet_.Restart();
  fleet_.Of("e2").leaves = true;
  fleet_.Rejoin("e2", {});
  EXPECT_FALSE(IsOnRoster("e2"));
  EXPECT_TRUE(fleet_.ended_.back().status.ok());
}

TEST_F(Goodbye, WaitsWhileTheStoreIsLost) {
  Begin({});
  const HoldsMark remembered = *fleet_.remembered_;
  fleet_.remembered_.reset();
  fleet_.List();
  ASSERT_EQ(fleet_.Status().footing, Footing::kStoreLost);
  SayGoodbye("e2");
  EXPECT_TRUE(IsOnRoster("e2")) << "what its door knows may have to be adopted";
  fleet_.remembered_ = remembered;
  fleet_.List();
  EXPECT_FALSE(IsOnRoster("e2"));
}

TEST_F(Goodbye, ThatWaitsIsNoneOnceTheProxyIsBack) {
  Begin({});
  const HoldsMark remembered = *fleet_.remembered_;
  fleet_.remembered_.reset();
  fleet_.List();
  SayGoodbye("e2");
  fleet_.Of("e2").leaves = false;
  fleet_.Join("e2");
  fleet_.remembered_ = remembered;
  fleet_.List();
  EXPECT_TRUE(IsOnRoster("e2"));
}

TEST_F(Goodbye, ThatWaitsEndsWithItsSession) {
  Begin({});
  const HoldsMark remembered = *fleet_.remembered_;
  fleet_.remembered_.reset();
  fleet_.List();
  SayGoodbye("e2");
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  fleet_.remembered_ = remembered;
  fleet_.List();
  EXPECT_TRUE(IsOnRoster("e2"));
}

TEST_F(Goodbye, IsNoMoreOnceTheMemberIsAttachedAnew) {
  Begin({});
  SayGoodbye("e2");
  fleet_.Of("e2").leaves = false;
  fleet_.Join("e2");
  fleet_.Obey("e2");
  EXPECT_TRUE(IsOnRoster("e2"));
  EXPECT_EQ(fleet_.StatusOf("e2").standing, MemberStanding::kReady);
  EXPECT_TRUE(fleet_.MayLoad("e2", 1));
}

// Whatever its engine ends by, nobody is left who could tell, and an operator has stopped it.
TEST_F(Goodbye, InATryIsNobodysDeathThoughItComesBackWithoutItsJournal) {
  Begin({});
  const VersionKey second = fleet_.Publish(2);
  ASSERT_TRUE(fleet_.MayLoad("e1", 2));
  SayGoodbye("e1");
  EXPECT_FALSE(std::get<VerdictRecord>(fleet_.records_.at(VerdictKey(second).text))
                   .groups.begin()
                   ->second.leave.contains(MemberId("e1")));
  fleet_.Of("e1").leaves = false;
  fleet_.Evict("e1");
  fleet_.Attach("e1");
  fleet_.Report("e1");
  EXPECT_TRUE(std::get<VerdictRecord>(fleet_.records_.at(VerdictKey(second).text))
                  .groups.begin()
                  ->second.deaths.empty());
}

}  // namespace
}  // namespace lorry::sync
