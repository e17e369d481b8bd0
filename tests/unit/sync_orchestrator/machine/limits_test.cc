// What ends, and how much of it there may be: members, what is known of versions, leases.
#include "lib/base/error.h"
#include "lib/fleet/held.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

void Declare(Fleet& fleet, const std::string& id, MemberMark mark) {
  fleet.Step(MemberMarked{1, MemberId(id), mark, ""});
}

bool IsOnRoster(const Fleet& fleet, const std::string& id) {
  return fleet.records_.contains(MemberKey(MemberId(id)).text);
}

TEST(Dead, IsForgottenAfterADay) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  Declare(fleet, "e2", MemberMark::kDead);
  fleet.Pass(fleet.config_.forget_ms - 1);
  EXPECT_TRUE(IsOnRoster(fleet, "e2"));
  fleet.Pass(1);
  EXPECT_FALSE(IsOnRoster(fleet, "e2"));
  EXPECT_EQ(fleet.Status().members.size(), 1U);
}

TEST(Dead, IsForgottenByALaterReign) {
  Fleet fleet;
  fleet.Join("e1");
  Declare(fleet, "e1", MemberMark::kDead);
  fleet.Restart();
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Dead, IsNotForgottenOnceItIsBack) {
  Fleet fleet;
  fleet.Join("e1");
  Declare(fleet, "e1", MemberMark::kDead);
  fleet.Join("e1");
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_TRUE(IsOnRoster(fleet, "e1"));
}

TEST(Dead, LeavesASyncThatItWasPartOf) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Set("e1", {kMath, RunId(1), VersionNumber(1)}, fleet::ResidencyState::kLoading);
  Declare(fleet, "e1", MemberMark::kDead);
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Dead, HasNothingHeldForIt) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey first = fleet.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet.Obey(id);
  for (const char* id : {"e1", "e2"}) fleet.Obey(id);
  ASSERT_EQ(fleet.Committed(), 1U);
  fleet.Step(SessionLost{fleet.SessionOf(MemberId("e2"))});
  for (uint64_t number = 2; number < 5; ++number) {
    fleet.Publish(number);
    for (int step = 0; step < 3; ++step) fleet.Obey("e1");
  }
  EXPECT_TRUE(fleet.Holds(first));  // it may come back, and serve it meanwhile
  Declare(fleet, "e2", MemberMark::kDead);
  EXPECT_FALSE(fleet.Holds(first));
}

void Leave(Fleet& fleet, const std::string& id) {
  fleet.Step(SessionLost{fleet.SessionOf(MemberId(id))});
}

fleet::AdapterPolicy WithBarriers() {
  fleet::AdapterPolicy policy;
  policy.mode = fleet::SyncMode::kBarrier;
  return policy;
}

TEST(Away, IsForgottenAfterADayAndNothingIsHeldForIt) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey first = fleet.Publish(1);
  for (int step = 0; step < 2; ++step) {
    for (const char* id : {"e1", "e2"}) fleet.Obey(id);
  }
  Leave(fleet, "e2");
  fleet.Pass(fleet.config_.forget_ms - 1);
  fleet.Publish(2);
  for (int step = 0; step < 3; ++step) fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 2U);
  EXPECT_TRUE(IsOnRoster(fleet, "e2"));
  EXPECT_TRUE(fleet.Holds(first)) << "it may come back, and serve it meanwhile";
  fleet.Pass(1);
  EXPECT_FALSE(IsOnRoster(fleet, "e2"));
  EXPECT_FALSE(fleet.Holds(first));
  fleet.Join("e2");
  fleet.Obey("e2");
  EXPECT_TRUE(fleet.MayLoad("e2", 2)) << "a newcomer";
}

// It follows this reign still, and takes no document of a lower number than the last that it had.
TEST(Away, ThatComesBackToTheSameReignIsToldWhatIsNew) {
  Fleet fleet;
  for (const char* id : {"e1", "e2"}) fleet.Join(id);
  fleet.Publish(1);
  for (int step = 0; step < 3; ++step) {
    for (const char* id : {"e1", "e2"}) fleet.Obey(id);
  }
  const Revision last = fleet.Of("e2").revision;
  ASSERT_GT(last.value, 1U);
  Leave(fleet, "e2");
  fleet.Pass(fleet.config_.forget_ms);
  fleet.Rejoin("e2", fleet.Of("e2").term);
  EXPECT_GT(fleet.DesiredRevision("e2"), last);
  EXPECT_FALSE(fleet.StatusOf("e2").current);
  fleet.Obey("e2");
  EXPECT_TRUE(fleet.StatusOf("e2").current);
}

TEST(Away, IsCountedAnewInEachReign) {
  Fleet fleet;
  fleet.Join("e1");
  Leave(fleet, "e1");
  fleet.Pass(fleet.config_.forget_ms - 1);
  fleet.Restart();
  fleet.Pass(1);
  EXPECT_TRUE(IsOnRoster(fleet, "e1"));
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Away, StaysInAPoolWithBarriersUntilItIsDeclaredDead) {
  Fleet fleet;
  fleet.Policy(WithBarriers());
  fleet.Join("e1");
  fleet.Join("elsewhere", 0, fleet::EngineKind::kVllm, PoolName("eval"));
  for (const char* id : {"e1", "elsewhere"}) Leave(fleet, id);
  fleet.Pass(2 * fleet.config_.forget_ms);
  EXPECT_TRUE(IsOnRoster(fleet, "e1")) << "its door may still answer";
  EXPECT_FALSE(IsOnRoster(fleet, "elsewhere"));
  Declare(fleet, "e1", MemberMark::kDead);
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Away, IsForgottenOnceThePolicyHasNoBarriersAnyMore) {
  Fleet fleet;
  fleet.Policy(WithBarriers());
  fleet.Join("e1");
  Leave(fleet, "e1");
  fleet.Pass(fleet.config_.forget_ms);
  fleet.Policy({});
  EXPECT_TRUE(IsOnRoster(fleet, "e1"));
  fleet.Pass(fleet.config_.retry_max_ms);
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

// The barrier goes on though the policy says ROLLING meanwhile, and asks every door.
TEST(Away, StaysWhileABarrierRuns) {
  Fleet fleet;
  fleet.config_.forget_ms = fleet.config_.lost_after_ms;
  fleet.Restart();
  fleet::AdapterPolicy policy = WithBarriers();
  policy.min_engines = {false, 1};
  fleet.Policy(policy);
  for (const char* id : {"e1", "e2"}) fleet.Join(id);
  fleet.Publish(1);
  for (int step = 0; step < 8 && fleet.Pool().phase != SyncPhase::kHolding; ++step) {
    for (const char* id : {"e1", "e2"}) fleet.Obey(id);
  }
  ASSERT_EQ(fleet.Pool().phase, SyncPhase::kHolding);
  Leave(fleet, "e2");
  policy.mode = fleet::SyncMode::kRolling;
  fleet.Policy(policy);
  fleet.Pass(fleet.config_.lost_after_ms);
  ASSERT_EQ(fleet.Pool().phase, SyncPhase::kHolding);
  EXPECT_TRUE(IsOnRoster(fleet, "e2"));
}

TEST(Away, IsNotForgottenWhileRecordsAreLost) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  Leave(fleet, "e2");
  fleet.remembered_->revision = Revision(1'000);
  fleet.List();
  ASSERT_EQ(fleet.Status().footing, Footing::kRecordsLost);
  fleet.Pass(fleet.config_.forget_ms);
  EXPECT_TRUE(IsOnRoster(fleet, "e2"));
}

// What engines died of counts once, however often the member leaves and comes back.
TEST(Forgotten, TellsNothingNewOfWhatWasCounted) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey killer = fleet.Publish(1);
  fleet.Set("e1", killer, fleet::ResidencyState::kLoading);
  fleet.Die("e1", killer);
  Leave(fleet, "e1");
  fleet.Pass(fleet.config_.forget_ms);
  ASSERT_FALSE(IsOnRoster(fleet, "e1"));
  fleet.Join("e1");
  EXPECT_TRUE(fleet.Verdicts().empty());
  EXPECT_TRUE(fleet.MayLoad("e1", 1)) << "one engine has died of it, and not two";
  fleet.Die("e1", killer);
  EXPECT_EQ(fleet.Verdicts().size(), 1U);
}

// Another journal under a name that was forgotten counts from the beginning.
TEST(Forgotten, IsAnotherWithAnotherJournal) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey killer = fleet.Publish(1);
  fleet.Die("e1", killer);
  Leave(fleet, "e1");
  fleet.Pass(fleet.config_.forget_ms);
  fleet.Of("e1").journal = JournalId("another");
  fleet.Rejoin("e1", {});
  EXPECT_EQ(fleet.Verdicts().size(), 1U);
}

TEST(Roster, RefusesMoreMembersThanItKeeps) {
  Fleet fleet;
  fleet.config_.members_limit = 2;
  fleet.Restart();
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Join("e3");
  ASSERT_EQ(fleet.ended_.size(), 1U);
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "ROSTER_FULL");
  EXPECT_FALSE(IsOnRoster(fleet, "e3"));
  fleet.Join("e2");  // not a new one
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "SESSION_REPLACED");
}

TEST(Roster, MakesRoomByForgettingTheDead) {
  Fleet fleet;
  fleet.config_.members_limit = 2;
  fleet.Restart();
  fleet.Join("e1");
  fleet.Join("e2");
  Declare(fleet, "e1", MemberMark::kDead);
  fleet.ended_.clear();
  fleet.Join("e3");
  EXPECT_TRUE(fleet.ended_.empty());
  EXPECT_TRUE(IsOnRoster(fleet, "e3"));
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Roster, MakesRoomByForgettingTheLostThatMayBe) {
  Fleet fleet;
  fleet.config_.members_limit = 2;
  fleet.Restart();
  fleet.Join("e1");
  fleet.Join("e2");
  Leave(fleet, "e1");
  fleet.ended_.clear();
  fleet.Join("e3");
  EXPECT_EQ(fleet.ended_.size(), 1U) << "e1 was there a moment ago";
  fleet.Pass(fleet.config_.lost_after_ms);
  fleet.Policy(WithBarriers());
  fleet.Join("e3");
  EXPECT_EQ(fleet.ended_.size(), 2U) << "its door may still answer";
  fleet.Policy({});
  fleet.Join("e3");
  EXPECT_EQ(fleet.ended_.size(), 2U);
  EXPECT_TRUE(IsOnRoster(fleet, "e3"));
  EXPECT_FALSE(IsOnRoster(fleet, "e1"));
}

TEST(Roster, MakesRoomByForgettingWhoIsAwayTheLongest) {
  Fleet fleet;
  fleet.config_.members_limit = 3;
  fleet.Restart();
  for (const char* id : {"e1", "e2", "e3"}) fleet.Join(id);
  for (const char* id : {"e2", "e1"}) {
    Leave(fleet, id);
    fleet.Pass(fleet.config_.lost_after_ms);
  }
  fleet.Join("e4");
  EXPECT_TRUE(IsOnRoster(fleet, "e1"));
  EXPECT_FALSE(IsOnRoster(fleet, "e2"));
}

TEST(Roster, KeepsHowAMemberIsReachedForAsLongAsTheMember) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Step(SessionOpened{7, MemberId("e1"), kRollout, fleet.Of("e1"), {.door_address = "door"}});
  fleet.Step(SessionLost{7});
  EXPECT_EQ(fleet.StatusOf("e1").contact.door_address, "door");
}

TEST(Holds, OfWhatIsServedNextComeBeforeThoseOfAliases) {
  Fleet fleet;
  fleet.Join("e1");
  AdapterInfo before{AdapterName("aliased"), {}, RunId(1)};
  before.policy.pools = {{PoolName("eval"), {}}};
  StoreListed listed{{before, fleet.adapter_}, {}, {}, fleet.remembered_};
  for (uint64_t number = 1; number <= fleet::kHeldVersionsMax; ++number) {
    listed.aliases.push_back({before.adapter,
                              AliasName("a" + std::to_string(number)),
                              {before.adapter, RunId(1), VersionNumber(number)}});
  }
  fleet.Step(std::move(listed));
  EXPECT_EQ(fleet.holds_.back().size(), fleet::kHeldVersionsMax);
  const VersionKey next = fleet.Publish(1);
  EXPECT_EQ(fleet.holds_.back().size(), fleet::kHeldVersionsMax) << "the store takes no more";
  EXPECT_TRUE(fleet.Holds(next));
  EXPECT_TRUE(fleet.Wants("e1", 1));
}

TEST(Leases, AreLimited) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  for (int step = 0; step < 3; ++step) fleet.Obey("e1");
  for (int i = 0; i < 1'000; ++i) fleet.Lease(kLatest, 60'000, "client-" + std::to_string(i));
  fleet.Step(LeaseAsked{1, kLatest, kRollout, "one-more", 60'000});
  EXPECT_EQ(ReasonOf(fleet.replies_.back().status), "TOO_MANY_LEASES");
  fleet.Lease(kLatest, 60'000, "client-7");  // renewed
  fleet.Lease(kLatest, 0, "client-8");
  fleet.Lease(kLatest, 60'000, "one-more");
}

// What the step checks besides (CheckDerived): no name is kept of what is gone.
TEST(Names, AreForgottenWithVersionsThatWereDeletedUnseen) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey leased = fleet.Publish(1);
  fleet.Alias("eval", leased);
  fleet.Obey("e1");
  fleet.Alias("eval", std::nullopt);
  fleet.NewRun();
  fleet.versions_.clear();
  fleet.List();
}

// One of which nothing else is known: no engine has tried it.
TEST(Names, OfVersionsThatNobodyTriedAreForgottenToo) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  ASSERT_TRUE(fleet.Wants("e1", 1));
  fleet.NewRun();
  fleet.versions_.clear();
  fleet.List();
  EXPECT_FALSE(fleet.Wants("e1", 1));
}

}  // namespace
}  // namespace lorry::sync
