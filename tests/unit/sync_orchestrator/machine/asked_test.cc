// What clients and operators ask of the machine, and what room there is: leases, overrides, slots.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

TEST(Leases, SayOnHowManyMembersTheVersionIsLoaded) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Obey("e1");
  fleet.Join("e2");  // a newcomer
  Resolved resolved = fleet.Lease(kLatest, 10'000);
  EXPECT_EQ(resolved.version.key.number, VersionNumber(1));
  EXPECT_EQ(resolved.loaded, 1u);
  EXPECT_EQ(resolved.members, 2u);
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Lease(kLatest, 10'000).loaded, 2u);
}

TEST(Leases, NothingIsPromisedBeforeTheStoreSaysThatItKeepsIt) {
  Fleet fleet;
  fleet.Join("e1");
  for (uint64_t number = 1; number <= 3; ++number) fleet.Publish(number);
  for (int i = 0; i < 3; ++i) fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 3u);
  const Selector skipped{kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(2)};
  fleet.store_is_silent_ = true;
  fleet.Step(LeaseAsked{1, skipped, kRollout, "client", 10'000});
  EXPECT_EQ(ReasonOf(fleet.replies_.back().status), "HOLD_PENDING");
  fleet.StoreAnswers();
  EXPECT_EQ(fleet.Lease(skipped, 10'000).version.key.number, VersionNumber(2));
}

TEST(Leases, WhatALaterSetLeftOutIsNotKeptByTheAnswerToAnEarlierOne) {
  Fleet fleet;
  fleet.Join("e1");
  for (uint64_t number = 1; number <= 3; ++number) fleet.Publish(number);
  for (int i = 0; i < 3; ++i) fleet.Obey("e1");
  const VersionKey skipped{kMath, RunId(1), VersionNumber(2)};
  fleet.store_is_silent_ = true;
  fleet.Alias("best", skipped);       // kept
  fleet.Alias("best", std::nullopt);  // left out: the store may delete it
  fleet.Alias("best", skipped);       // kept again
  fleet.StoreAnswersTheFirst();
  const Selector named{kMath, Selector::Kind::kNumber, {}, {}, skipped.number};
  fleet.Step(LeaseAsked{1, named, kRollout, "client", 10'000});
  EXPECT_EQ(ReasonOf(fleet.replies_.back().status), "HOLD_PENDING");
  fleet.StoreAnswers();
  EXPECT_EQ(fleet.Lease(named, 10'000).version.key, skipped);
}

TEST(Leases, AReleaseOfLatestEndsWhatLatestWas) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Lease(kLatest, 100'000);
  fleet.Publish(2);
  fleet.Obey("e1");
  fleet.Lease(kLatest, 100'000);
  fleet.Publish(3);
  fleet.Obey("e1");
  fleet.Lease(kLatest, 100'000, "another");
  const Resolved released = fleet.Lease(kLatest, 0);
  EXPECT_EQ(released.released, 2u);
  EXPECT_EQ(released.version.key.number, VersionNumber(2)) << "the newest of them";
  EXPECT_EQ(fleet.Lease(kLatest, 0).released, 0u) << "a retry finds nothing, and that is well";
  fleet.Restart();
  ASSERT_EQ(fleet.Leases().size(), 1u);
  EXPECT_EQ(fleet.Leases()[0].record.holder, "another");
}

TEST(Leases, AReleaseOfANumberLeavesTheOthers) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  fleet.Obey("e1");
  const Selector first{kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)};
  fleet.Lease(first, 100'000);
  fleet.Lease(kLatest, 100'000);
  fleet.NewRun();  // the numbers begin anew
  EXPECT_EQ(fleet.Lease(first, 0).released, 1u);
  ASSERT_EQ(fleet.Leases().size(), 1u);
  EXPECT_EQ(fleet.Leases()[0].record.version.key.number, VersionNumber(2));
  const Selector exact{kMath, Selector::Kind::kVersion, {}, RunId(2), VersionNumber(2)};
  EXPECT_EQ(fleet.Lease(exact, 0).released, 0u) << "another run's 2";
}

TEST(Overrides, ALateRetryChangesNothingAndGetsTheFirstAnswer) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  const VersionKey second = fleet.Publish(2);
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Override(first, "call-1").epoch, Epoch(3));
  fleet.Obey("e1");
  fleet.Override(second, "call-2");
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Override(first, "call-1").epoch, Epoch(3)) << "sent again by somebody patient";
  EXPECT_EQ(fleet.Pool().override_to, second);
  fleet.Restart();
  fleet.Join("e1");
  EXPECT_EQ(fleet.Override(first, "call-1").epoch, Epoch(3));
  EXPECT_EQ(fleet.Pool().override_to, second);
  EXPECT_EQ(ReasonOf(fleet.Override(second, "call-1").status), "REQUEST_ID_REUSED");
  fleet.Override(first, "call-3");
  EXPECT_EQ(fleet.Pool().override_to, first) << "a call of its own";
}

TEST(Overrides, WhatWasRefusedIsTriedAgain) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey later{kMath, RunId(1), VersionNumber(1)};
  EXPECT_EQ(ReasonOf(fleet.Override(later, "call-1").status), "UNKNOWN_VERSION");
  fleet.Publish(1);
  EXPECT_TRUE(fleet.Override(later, "call-1").status.ok());
}

TEST(Overrides, TheLastFewAreRemembered) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  for (int call = 0; call < 17; ++call) {
    fleet.Override(key, "pin-" + std::to_string(call));
    fleet.Override(std::nullopt, "");
  }
  EXPECT_EQ(std::get<RequestsRecord>(fleet.records_.at("requests/math/rollout")).overrides.size(),
            16u);
  fleet.Override(key, "pin-16");
  EXPECT_FALSE(fleet.Pool().override_to.has_value());
  fleet.Override(key, "pin-0");
  EXPECT_TRUE(fleet.Pool().override_to.has_value()) << "as long ago as that is a new call";
}

TEST(Slots, NoSlotNamesTheHolders) {
  Fleet fleet;
  fleet::AdapterPolicy policy;
  policy.keep = {fleet::KeepRule::Kind::kCount, 1};
  fleet.Policy(policy);
  fleet.Join("e1", 1);
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  EXPECT_EQ(fleet.Pool().waits_for, "NO_SLOT");
  EXPECT_THAT(fleet.Pool().detail, testing::HasSubstr("math-v1-"));
}

TEST(Slots, TheArithmeticIsOverEveryAdapterOfThePool) {
  Fleet fleet;
  fleet.Join("e1", 4);
  EXPECT_EQ(fleet.Need("e1").needed, 0u) << "nothing is stored";
  fleet.Publish(1);
  EXPECT_EQ(fleet.Need("e1").needed, 3u) << "math: 2 kept, 1 next";
  EXPECT_EQ(fleet.Need("e1").shortage, "");
  AdapterInfo code{AdapterName("code"), {}, RunId(1)};
  code.policy.keep = {fleet::KeepRule::Kind::kCount, 3};
  fleet.Step(AdapterSet{code});
  EXPECT_EQ(fleet.Need("e1").needed, 3u) << "one that was only created takes nothing";
  fleet.Step(VersionStored{{{code.adapter, RunId(1), VersionNumber(1)}, Digest{"c"}, {}}});
  EXPECT_EQ(fleet.Need("e1").needed, 7u);
  EXPECT_EQ(fleet.Need("e1").kept, 5u);
  EXPECT_THAT(fleet.Need("e1").shortage,
              testing::AllOf(testing::HasSubstr("4 adapter slots, 7 are needed (code 3 kept + 1 "
                                                "next + 0 aliased + 0 leased; math 2 kept"),
                             testing::HasSubstr("raise --max-cpu-loras")));
  code.policy.pools = {{PoolName("eval"), {}}};
  fleet.Step(AdapterSet{code});
  EXPECT_EQ(fleet.Need("e1").needed, 3u) << "another pool's";
}

TEST(Slots, AVersionThatAnAliasAndALeaseNameCountsOnce) {
  Fleet fleet;
  fleet.Join("e1", 8);
  const VersionKey key = fleet.Publish(1);
  fleet.Obey("e1");
  for (const char* alias : {"eval", "best"}) fleet.Step(AliasSet{kMath, AliasName(alias), key});
  fleet.Lease(kLatest, 10'000);
  EXPECT_EQ(fleet.Need("e1").needed, 4u);
  fleet.Publish(2);
  fleet.Obey("e1");
  fleet.Lease(kLatest, 10'000);
  EXPECT_EQ(fleet.Need("e1").needed, 5u);
  fleet.Pass(10'000);
  EXPECT_EQ(fleet.Need("e1").needed, 4u);
}

// One adapter that is loaded on demand.
fleet::AdapterPolicy OnDemand() {
  fleet::AdapterPolicy policy;
  policy.residency = fleet::ResidencyMode::kOnDemand;
  return policy;
}

TEST(OnDemand, WhatIsServedMayLeaveOnceItIsProven) {
  Fleet fleet;
  fleet.Policy(OnDemand());
  fleet.Join("e1", 2);
  fleet.Publish(1);
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->must) << "it is synced";
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_FALSE(fleet.WantedOn("e1", 1)->must);
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->on_demand);
  fleet.Join("e2", 2, fleet::EngineKind::kSglang);
  EXPECT_TRUE(fleet.WantedOn("e2", 1)->must) << "no engine of this group has proven it";
  fleet.Step(AliasSet{kMath, AliasName("eval"), VersionKey{kMath, RunId(1), VersionNumber(1)}});
  EXPECT_TRUE(fleet.WantedOn("e1", 1)->must) << "an alias names it";
  fleet.Policy({});
  EXPECT_FALSE(fleet.WantedOn("e1", 1)->on_demand);
}

TEST(OnDemand, ASyncWaitsForNoSlotOfWhatGivesWay) {
  Fleet fleet;
  fleet.Policy(OnDemand());
  fleet.Join("e1", 1);
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Of("e1").residencies.at(0).in_flight = 5;
  fleet.Report("e1");
  fleet.Publish(2);
  EXPECT_EQ(fleet.Pool().waits_for, "");
  EXPECT_TRUE(fleet.WantedOn("e1", 2)->must);
}

TEST(OnDemand, AllTogetherNeedOneSlotAndOneForTheNext) {
  Fleet fleet;
  fleet.Policy(OnDemand());
  fleet.Join("e1", 2);
  fleet.Publish(1);
  for (const std::string name : {"code", "art", "law"}) {
    AdapterInfo info{AdapterName(name), OnDemand(), RunId(1)};
    fleet.Step(AdapterSet{info});
    fleet.Step(VersionStored{{{info.adapter, RunId(1), VersionNumber(1)}, Digest{name}, {}}});
  }
  EXPECT_EQ(fleet.Need("e1").needed, 2u);
  EXPECT_EQ(fleet.Need("e1").kept, 1u);
  EXPECT_EQ(fleet.Need("e1").shortage, "");
  const VersionKey key{kMath, RunId(1), VersionNumber(1)};
  fleet.Step(AliasSet{kMath, AliasName("eval"), key});
  EXPECT_EQ(fleet.Need("e1").needed, 3u);
  EXPECT_THAT(fleet.Need("e1").shortage,
              testing::HasSubstr("math 1 aliased + 0 leased; 4 on demand: 1 shared + 1 next"));
}

TEST(OnDemand, ALeaseLeavesTheSlotThatIsShared) {
  Fleet fleet;
  fleet.Policy(OnDemand());
  fleet.Join("e1", 2);
  fleet.Publish(1);
  fleet.Obey("e1");
  AdapterInfo code{AdapterName("code"), OnDemand(), RunId(1)};
  fleet.Step(AdapterSet{code});
  fleet.Step(VersionStored{{{code.adapter, RunId(1), VersionNumber(1)}, Digest{"c"}, {}}});
  fleet.Obey("e1");
  fleet.Step(LeaseAsked{1'000, kLatest, kRollout, "client", 10'000});
  EXPECT_THAT(std::string(fleet.replies_.back().status.message()),
              testing::HasSubstr("another for what is loaded on demand"));
}

TEST(Slots, ASmallerBatchLimitIsAWarningWithItsCost) {
  Fleet fleet;
  fleet.Join("e1", 4);
  fleet.Publish(1);
  fleet.Of("e1").limits.batch_slots = 1;
  fleet.Report("e1");
  EXPECT_EQ(fleet.Need("e1").shortage, "");
  EXPECT_THAT(fleet.Need("e1").batch_cost,
              testing::AllOf(testing::HasSubstr("of 1 adapter and keeps up to 2"),
                             testing::HasSubstr("the next version is not probed"),
                             testing::HasSubstr("--max-loras")));
}

TEST(Slots, AnEngineThatBatchesOneAdapterSaysSoHoweverFewAreKept) {
  Fleet fleet;
  fleet.Policy({.keep = {fleet::KeepRule::Kind::kCount, 1}});
  fleet.Join("e1", 4);
  fleet.Publish(1);
  fleet.Of("e1").limits.batch_slots = 1;
  fleet.Report("e1");
  EXPECT_THAT(fleet.Need("e1").batch_cost, testing::HasSubstr("the next version is not probed"));
}

TEST(Leases, ARefusedRenewalShortensNothing) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  const Selector first{kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)};
  fleet.Lease(first, 60'000);
  fleet.store_is_silent_ = true;
  fleet.Restart();  // nothing is held in this reign yet
  fleet.Step(LeaseAsked{1, first, kRollout, "client", 10});
  fleet.Pass(1'000);
  ASSERT_EQ(fleet.Leases().size(), 1u);
  EXPECT_EQ(fleet.Leases()[0].record.ttl_ms, 60'000);
}

TEST(Leases, LastAWeekAtMost) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Step(LeaseAsked{1, kLatest, kRollout, "client", std::numeric_limits<int64_t>::max()});
  EXPECT_EQ(ReasonOf(fleet.replies_.back().status), "MESSAGE_INVALID");
  EXPECT_TRUE(fleet.Leases().empty());
}

TEST(Life, AnAdapterThatIsGoneIsLetGoAndTakenBackUnderAHigherEpoch) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Step(AliasSet{kMath, AliasName("eval"), first});
  ASSERT_THAT(fleet.holds_.back(), testing::ElementsAre(first));
  const Epoch before = fleet.Pool().committed->epoch;

  fleet.Step(AdapterDeleted{kMath});
  EXPECT_THAT(fleet.holds_.back(), testing::IsEmpty()) << "its versions may be deleted";
  EXPECT_FALSE(fleet.Wants("e1", 1)) << "and engines unload them";

  fleet.NewRun();
  const VersionKey second = fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Obey("e1");
  EXPECT_GT(fleet.Pool().committed->epoch, before);
  EXPECT_NE(second, first);
}

TEST(Life, OnlyTheWindowIsHeldAtTheStore) {
  Fleet fleet;
  fleet.Join("e1");
  std::vector<VersionKey> keys;
  for (uint64_t number = 1; number <= 5; ++number) {
    keys.push_back(fleet.Publish(number));
    for (int i = 0; i < 3; ++i) fleet.Obey("e1");
  }
  EXPECT_THAT(fleet.holds_.back(), testing::UnorderedElementsAre(keys[3], keys[4]))
      << "max_staleness + 1: what is older is the store's to keep or to delete";
}

TEST(Watch, AHigherEpochOfAnotherIncarnationServesNothing) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey key = fleet.Publish(1);
  for (const char* id : {"e1", "e2"}) fleet.Set(id, key, fleet::ResidencyState::kLoaded);
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Of("e1").rows = {
      {kMath, fleet::RowMode::kOpen, 1, Epoch(1), EngineName("math-v9-0123456789ab"), {}, {}}};
  fleet.Report("e1");
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_EQ(fleet.told_.back().done, 0u) << "the same epoch of other bytes";
  fleet.Of("e1").rows[0].epoch = Epoch(9);
  fleet.Of("e1").term = Term{7, 1};
  ++fleet.Of("e1").sequence;
  fleet.Step(MemberObserved{fleet.SessionOf(MemberId("e1")), fleet.Of("e1")});
  EXPECT_EQ(fleet.told_.back().done, 0u);
}

const PoolName kEval("eval");

// A pool that follows the rollout engines' decisions, and one engine in it.
void JoinEval(Fleet& fleet) {
  fleet::AdapterPolicy policy = fleet.adapter_.policy;
  policy.pools[kEval] = {fleet::PoolSource::Kind::kPool, kRollout, {}};
  fleet.Policy(policy);
  fleet.Join("v1", 0, fleet::EngineKind::kVllm, kEval);
}

TEST(Watch, OfAPoolThatFollowsAnotherEnds) {
  Fleet fleet;
  fleet.Join("e1");
  JoinEval(fleet);
  const VersionKey first = fleet.Publish(1);
  fleet.Publish(2);
  const VersionKey third = fleet.Publish(3);
  fleet.Obey("e1");
  fleet.Obey("e1");
  const VersionKey second{kMath, RunId(1), VersionNumber(2)};
  fleet.Step(WatchOpened{1, second, kEval});
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kSuperseded) << ToString(first);
  EXPECT_EQ(fleet.told_.back().superseded_by, third);
}

TEST(Watch, OfAPoolThatFollowsAnotherSaysWhatThatOneWaitsFor) {
  Fleet fleet;
  JoinEval(fleet);
  const VersionKey first = fleet.Publish(1);
  fleet.Step(WatchOpened{1, first, kEval});
  EXPECT_EQ(fleet.told_.back().reason, "TOO_FEW_ENGINES");
  EXPECT_THAT(fleet.told_.back().detail, testing::HasSubstr("follows pool rollout"));
}

// Nobody may ever set the alias.
TEST(Watch, OfAPoolBehindOneThatFollowsAnAliasEndsUntilTheAliasNamesTheVersion) {
  Fleet fleet;
  fleet::AdapterPolicy policy = fleet.adapter_.policy;
  policy.pools[kRollout] = {fleet::PoolSource::Kind::kAlias, {}, AliasName("best")};
  fleet.Policy(policy);
  fleet.Join("e1");
  JoinEval(fleet);
  const VersionKey first = fleet.Publish(1);
  fleet.Step(WatchOpened{1, first, kEval});
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kStored);
  EXPECT_TRUE(fleet.told_.back().final);
  EXPECT_EQ(fleet.told_.back().detail, "pool rollout follows alias best, which does not name it");
  fleet.Alias("best", first);
  fleet.Step(WatchOpened{2, first, kEval});
  EXPECT_FALSE(fleet.told_.back().final);
}

TEST(Status, ALiftedRollbackSaysWhatComesNext) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  fleet.Obey("e1");
  fleet.Override(first, "");
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.PoolOf(kRollout).waits_for, "OVERRIDDEN");
  fleet.Override(std::nullopt, "");
  EXPECT_EQ(fleet.PoolOf(kRollout).waits_for, "NEXT_VERSION");
  EXPECT_EQ(fleet.PoolOf(kRollout).about->number, VersionNumber(2));
}

}  // namespace
}  // namespace lorry::sync
