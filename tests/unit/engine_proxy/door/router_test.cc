#include "services/engine_proxy/door/router.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/tables.h"

namespace lorry::door {
namespace {

using fleet::NoAdapterMode;
using fleet::RowMode;
using fleet::StaleMode;
using testing::NameOf;
using testing::TableMaker;

fleet::DoorRules RulesOf(const std::string& adapter, NoAdapterMode none = NoAdapterMode::kRefuse,
                         StaleMode stale = StaleMode::kRefuse) {
  return {
      .adapter = AdapterName(adapter), .current_run = RunId(1), .stale = stale, .no_adapter = none};
}

// The engine name, or "HELD", or the reason of the refusal.
std::string Ask1(Router& router, const std::string& reference,
                 std::optional<MinVersion> min = std::nullopt) {
  Resolution outcome = router.Resolve({{reference}, min});
  if (auto* refused = std::get_if<Refused>(&outcome)) {
    return std::to_string(refused->status) + " " + refused->reason;
  }
  if (auto* held = std::get_if<Held>(&outcome)) return "HELD else " + held->too_late.reason;
  const Resolved& resolved = std::get<Admitted>(outcome).resolved[0];
  return resolved.name.empty() ? "@base" : resolved.name.value;
}

TableMaker Ordinary() {
  TableMaker maker;
  maker.Loaded("policy", 11, 1).Loaded("policy", 12).Loaded("policy", 9, 3, 2).Loaded("critic", 4);
  maker.Row("policy", RowMode::kOpen, 12).Row("critic", RowMode::kOpen, 4);
  maker.Alias("policy", "eval", 11).Alias("policy", "best", 3);
  return maker;
}

class RouterTest : public ::testing::Test {
 protected:
  // For a barrier or a quiesce: the row waits until what runs has ended.
  void HoldTheRow(TableMaker maker) {
    maker.raw().rows[0].mode = fleet::RowMode::kHeld;
    maker.raw().rows[0].target = EngineName();
    maker.raw().revision = Revision(2);
    router_.SetTable(maker.Make());
  }
  Router router_{100, [this] { ++quiet_; }};
  int quiet_ = 0;
};

TEST_F(RouterTest, UnderstandsEverySpelling) {
  router_.SetTable(Ordinary().Make());
  const std::string v12 = NameOf("policy", 12).value;
  const std::string v11 = NameOf("policy", 11).value;
  EXPECT_EQ(Ask1(router_, "policy"), v12);
  EXPECT_EQ(Ask1(router_, "policy@latest"), v12);
  EXPECT_EQ(Ask1(router_, "policy@11"), v11);
  EXPECT_EQ(Ask1(router_, "policy-v11"), v11);
  EXPECT_EQ(Ask1(router_, "policy@eval"), v11);
  EXPECT_EQ(Ask1(router_, "policy@r1.11"), v11);
  EXPECT_EQ(Ask1(router_, "policy r1.11"), v11) << "as logs print it";
  EXPECT_EQ(Ask1(router_, "policy@r2.9"), NameOf("policy", 9).value + "-r2") << "an older run";
  EXPECT_EQ(Ask1(router_, v11), v11);
}

TEST_F(RouterTest, RefusesWhatItCannotServe) {
  router_.SetTable(Ordinary().Make());
  EXPECT_EQ(Ask1(router_, ""), "400 NO_ADAPTER");
  EXPECT_EQ(Ask1(router_, "@base"), "400 NO_ADAPTER");
  EXPECT_EQ(Ask1(router_, "policy@base"), "400 NO_ADAPTER");
  EXPECT_EQ(Ask1(router_, "polciy"), "404 UNKNOWN_ADAPTER");
  EXPECT_EQ(Ask1(router_, "policy@nope"), "404 UNKNOWN_ADAPTER");
  EXPECT_EQ(Ask1(router_, "policy@best"), "409 NOT_LOADED");
  EXPECT_EQ(Ask1(router_, "policy@10"), "409 NOT_LOADED");
  EXPECT_EQ(Ask1(router_, "policy-v9"), "409 NOT_LOADED") << "loaded, but of another run";
  EXPECT_EQ(Ask1(router_, "policy@r3.9"), "409 NOT_LOADED");
  EXPECT_EQ(Ask1(router_, "policy-v10-0123456789ab"), "404 UNKNOWN_ADAPTER");
  EXPECT_EQ(Ask1(router_, "policy@prod"), "404 UNKNOWN_ADAPTER");
  EXPECT_EQ(Ask1(router_, "policy@Eval"), "404 UNKNOWN_ADAPTER");
  EXPECT_EQ(router_.Snapshot().live, 0u);
}

TEST_F(RouterTest, SaysHowAnAliasIsMadeAndWhatAdaptersAreCalledHere) {
  router_.SetTable(Ordinary().Make());
  const auto said = [&](const char* reference) {
    return std::get<Refused>(router_.Resolve({{reference}, {}})).message;
  };
  EXPECT_TRUE(
      said("policy@nope")
          .starts_with("policy has no alias 'nope'; `lorry alias policy nope VERSION` makes one"))
      << said("policy@nope");
  EXPECT_NE(said("policy@evol").find("did you mean policy@eval"), std::string::npos);
  EXPECT_NE(said("").find("for instance critic, critic@12"), std::string::npos) << said("");
}

TEST_F(RouterTest, SuggestsTheNearestNames) {
  router_.SetTable(Ordinary().Make());
  Resolution outcome = router_.Resolve({{"polcy"}, {}});
  EXPECT_NE(std::get<Refused>(outcome).message.find("did you mean policy"), std::string::npos);
  outcome = router_.Resolve({{"policy@evl"}, {}});
  EXPECT_NE(std::get<Refused>(outcome).message.find("did you mean policy@eval"), std::string::npos);
}

TEST_F(RouterTest, ListsWhatIsLoadedAsItCanBeAskedFor) {
  router_.SetTable(Ordinary().Make());
  const Resolution outcome = router_.Resolve({{"policy@best"}, {}});
  EXPECT_EQ(std::get<Refused>(outcome).message,
            "policy@best is not loaded at this engine; loaded of policy: policy@r2.9, policy@12, "
            "policy@11");
  for (const char* listed : {"policy@r2.9", "policy@12", "policy@11"}) {
    EXPECT_TRUE(std::holds_alternative<Admitted>(router_.Resolve({{listed}, {}}))) << listed;
  }
}

TEST_F(RouterTest, ANumberThatIsNotLoadedMayNeverHaveBeenPublished) {
  router_.SetTable(Ordinary().Make());
  const auto said = [&](const char* reference) {
    const Resolution outcome = router_.Resolve({{reference}, {}});
    EXPECT_EQ(std::get<Refused>(outcome).reason, "NOT_LOADED");
    return std::get<Refused>(outcome).message;
  };
  EXPECT_EQ(said("policy@99"),
            "policy@99 is not loaded at this engine, and may never have been published: `lorry "
            "versions policy` lists what is stored, `lorry lease policy 99` has a stored version "
            "loaded; loaded of policy: policy@12, policy@11, policy@r2.9");
  EXPECT_TRUE(said("policy@10").ends_with(": policy@r2.9, policy@11, policy@12")) << "the nearest";
  EXPECT_NE(said("policy@r1.9").find("`lorry lease policy r1.9`"), std::string::npos);
}

TEST_F(RouterTest, SaysHowToWriteWhatCannotBeRead) {
  router_.SetTable(Ordinary().Make());
  const Resolution outcome = router_.Resolve({{"policy@Eval"}, {}});
  const std::string& message = std::get<Refused>(outcome).message;
  EXPECT_NE(message.find("write 12, r2.12"), std::string::npos) << message;
}

TEST_F(RouterTest, FollowsTheRow) {
  const auto with = [&](RowMode mode, bool catching_up = false) {
    TableMaker maker;
    maker.Loaded("policy", 1).Row("policy", mode, 1, catching_up);
    router_.SetTable(maker.Make());
    return Ask1(router_, "policy");
  };
  EXPECT_EQ(with(RowMode::kOpen), NameOf("policy", 1).value);
  EXPECT_EQ(with(RowMode::kHeld), "HELD else HELD_TOO_LONG");
  EXPECT_EQ(Ask1(router_, "policy@1"), NameOf("policy", 1).value) << "explicit ones are outside";
  EXPECT_EQ(with(RowMode::kLocked), "HELD else SYNC_IN_DOUBT");
  EXPECT_EQ(with(RowMode::kClosed), "409 NOT_LOADED");
  EXPECT_EQ(with(RowMode::kClosed, true), "503 CATCHING_UP");
}

TEST_F(RouterTest, SaysWhatKeepsTheDecidedVersionAway) {
  TableMaker maker;
  maker.Row("policy", RowMode::kClosed, 0, /*catching_up=*/true);
  const auto said = [&] {
    router_.SetTable(maker.Make());
    return std::get<Refused>(router_.Resolve({{"policy"}, {}})).message;
  };
  EXPECT_EQ(said(), "the decided version of policy is still loading here");
  maker.raw().rows[0].waits_for = "the engine does not answer: ENGINE_TIMEOUT";
  EXPECT_EQ(said(),
            "the decided version of policy is not loaded here yet: the engine does not answer: "
            "ENGINE_TIMEOUT");
}

// A proxy that has just started knows its journal's rows alone: a restart must not look like an
// adapter, an alias or a policy that does not exist.
TEST_F(RouterTest, CallsNothingUnknownBeforeItIsTold) {
  TableMaker maker;
  maker.Loaded("policy", 1).Row("policy", RowMode::kOpen, 1).Row("critic", RowMode::kLocked);
  maker.raw().rules.clear();
  maker.raw().awaits_desired = true;
  router_.SetTable(maker.Make());
  EXPECT_EQ(Ask1(router_, "policy"), NameOf("policy", 1).value) << "what it knows it serves";
  for (const char* reference : {"policy@eval", "policy@1", "other", "", "@base"}) {
    EXPECT_EQ(Ask1(router_, reference), "503 CATCHING_UP") << reference;
  }
  EXPECT_GT(std::get<Refused>(router_.Resolve({{"policy@eval"}, {}})).retry_after_s, 0);
  EXPECT_EQ(Ask1(router_, "critic"), "HELD else SYNC_IN_DOUBT");
  maker.raw().awaits_desired = false;
  router_.SetTable(maker.Make());
  EXPECT_EQ(Ask1(router_, "policy@eval"), "404 UNKNOWN_ADAPTER");
}

TEST_F(RouterTest, ATextMeansWhatTheLastTableSays) {
  for (const uint64_t number : {11u, 12u, 11u}) {
    TableMaker maker;
    maker.Loaded("policy", 11).Loaded("policy", 12).Row("policy", RowMode::kOpen, number);
    router_.SetTable(maker.Make());
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(Ask1(router_, "policy"), NameOf("policy", number).value);
    }
    EXPECT_EQ(Ask1(router_, "policy", MinVersion{12}) == NameOf("policy", 12).value, number == 12);
  }
}

TEST_F(RouterTest, RefusesEverythingWithoutAnEngine) {
  EXPECT_EQ(Ask1(router_, "policy"), "503 ENGINE_UNREACHABLE");
  TableMaker maker = Ordinary();
  maker.raw().boot = BootId();
  router_.SetTable(maker.Make());
  EXPECT_EQ(Ask1(router_, "policy"), "503 ENGINE_UNREACHABLE");
}

TEST_F(RouterTest, AMinimumWaitsForLatestAndRefusesWhatIsNamed) {
  TableMaker maker;
  maker.Loaded("policy", 11, 1)
      .Loaded("policy", 12)
      .Row("policy", RowMode::kOpen, 11)
      .Alias("policy", "eval", 11);
  router_.SetTable(maker.Make());
  const Resolution latest = router_.Resolve({{"policy"}, MinVersion{12}});
  ASSERT_TRUE(std::holds_alternative<Held>(latest));
  EXPECT_EQ(std::get<Held>(latest).too_late.status, 503);
  EXPECT_EQ(std::get<Held>(latest).too_late.reason, "CATCHING_UP");
  EXPECT_EQ(std::get<Held>(latest).limit_ms, fleet::DoorRules().hold_limit_ms);
  for (const char* named : {"policy@11", "policy@eval"}) {
    const Resolution outcome = router_.Resolve({{named}, MinVersion{12}});
    ASSERT_TRUE(std::holds_alternative<Refused>(outcome)) << named;
    EXPECT_EQ(std::get<Refused>(outcome).status, 409);
    EXPECT_EQ(std::get<Refused>(outcome).reason, "STALE_VERSION");
  }
  EXPECT_TRUE(std::holds_alternative<Admitted>(router_.Resolve({{"policy@12"}, MinVersion{12}})));
  maker.raw().rows[0].target = NameOf("policy", 12);
  router_.SetTable(maker.Make());
  EXPECT_TRUE(std::holds_alternative<Admitted>(router_.Resolve({{"policy"}, MinVersion{12}})));
}

TEST_F(RouterTest, JudgesStaleness) {
  const auto with = [&](StaleMode stale, uint32_t lag, bool known = true) {
    TableMaker maker;
    maker.raw().lag_known = known;
    maker.Rules(RulesOf("policy", NoAdapterMode::kRefuse, stale));
    maker.Loaded("policy", 1, lag).Row("policy", RowMode::kOpen, 1).Alias("policy", "eval", 1);
    router_.SetTable(maker.Make());
    return Ask1(router_, "policy");
  };
  const std::string served = NameOf("policy", 1).value;
  EXPECT_EQ(with(StaleMode::kRefuse, 1), served);
  EXPECT_EQ(with(StaleMode::kRefuse, 2), "409 STALE_VERSION");
  EXPECT_EQ(Ask1(router_, "policy@eval"), served) << "aliases are exempt";
  EXPECT_EQ(Ask1(router_, "policy@1"), served) << "explicit versions are exempt";
  EXPECT_EQ(with(StaleMode::kHold, 2), "HELD else STALE_VERSION");
  EXPECT_EQ(with(StaleMode::kTag, 2), served);
  EXPECT_EQ(with(StaleMode::kRefuse, fleet::kLagNone), "409 STALE_VERSION") << "rolled back";
  EXPECT_EQ(with(StaleMode::kRefuse, 1, false), served) << "the orchestrator is away";
  EXPECT_EQ(with(StaleMode::kRefuse, 2, false), "409 STALE_VERSION") << "by what was known last";
}

TEST_F(RouterTest, HonoursTheLowestVersionAsked) {
  router_.SetTable(Ordinary().Make());
  EXPECT_EQ(Ask1(router_, "policy", MinVersion{12}), NameOf("policy", 12).value);
  EXPECT_EQ(Ask1(router_, "policy", MinVersion{13}), "HELD else CATCHING_UP");
  EXPECT_EQ(Ask1(router_, "policy@11", MinVersion{12}), "409 STALE_VERSION");
}

TEST_F(RouterTest, LetsThePolicySayWhatNoAdapterMeans) {
  TableMaker one;
  one.Rules(RulesOf("policy", NoAdapterMode::kLatest));
  router_.SetTable(one.Loaded("policy", 1).Row("policy", RowMode::kOpen, 1).Make());
  EXPECT_EQ(Ask1(router_, ""), NameOf("policy", 1).value);
  TableMaker base;
  base.Rules(RulesOf("policy", NoAdapterMode::kBase));
  router_.SetTable(base.Loaded("policy", 1).Row("policy", RowMode::kOpen, 1).Make());
  EXPECT_EQ(Ask1(router_, ""), "@base");
  EXPECT_EQ(Ask1(router_, "@base"), "@base");
  EXPECT_EQ(Ask1(router_, "policy@base"), "@base");
  base.Row("critic", RowMode::kClosed);
  router_.SetTable(base.Make());
  EXPECT_EQ(Ask1(router_, ""), "400 NO_ADAPTER") << "another adapter's policy refuses";
  EXPECT_EQ(Ask1(router_, "critic@base"), "400 NO_ADAPTER");
}

TEST_F(RouterTest, CountsUntilTheAdmissionEnds) {
  router_.SetTable(Ordinary().Make());
  {
    Resolution outcome = router_.Resolve({{"policy", "policy@12", "policy@11", "critic"}, {}});
    Admission moved = std::move(std::get<Admitted>(outcome).admission);
    const Counts counts = router_.Snapshot();
    EXPECT_EQ(counts.live, 1u);
    EXPECT_EQ(counts.in_flight.at(NameOf("policy", 12)), 2u) << "a request for each reference";
    EXPECT_EQ(counts.in_flight.at(NameOf("policy", 11)), 1u);
    EXPECT_EQ(counts.in_flight.at(NameOf("critic", 4)), 1u);
  }
  EXPECT_EQ(router_.Snapshot().live, 0u);
  EXPECT_TRUE(router_.Snapshot().in_flight.empty());
  EXPECT_EQ(quiet_, 0) << "all of them are still routed to";
}

TEST_F(RouterTest, CountsWhatTheEngineMakesOfARequest) {
  router_.SetTable(Ordinary().Make());
  Resolution samples = router_.Resolve({{"policy"}, {}, 8});
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 8u);
  Resolution batch = router_.Resolve({{"policy", "critic"}, {}, 4});
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 12u);
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("critic", 4)), 4u);
  EXPECT_EQ(router_.Snapshot().live, 2u) << "clients' requests";
  std::get<Admitted>(samples).admission.Release();
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 4u);
  std::get<Admitted>(batch).admission.Release();
  EXPECT_TRUE(router_.Snapshot().in_flight.empty());
}

TEST_F(RouterTest, CountsApartWhatDidNotAskForLatest) {
  router_.SetTable(Ordinary().Alias("policy", "prod", 12).Make());
  Resolution latest = router_.Resolve({{"policy"}, {}});
  Resolution named = router_.Resolve({{"policy@12", "policy@prod", "policy"}, {}, 4});
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 13u);
  EXPECT_EQ(router_.Snapshot().by_name.at(NameOf("policy", 12)), 8u);
  std::get<Admitted>(named).admission.Release();
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 1u);
  EXPECT_TRUE(router_.Snapshot().by_name.empty());
  std::get<Admitted>(latest).admission.Release();
  EXPECT_TRUE(router_.Snapshot().in_flight.empty());
}

TEST_F(RouterTest, AdmitsAllOrNothing) {
  router_.SetTable(Ordinary().Make());
  const Resolution outcome = router_.Resolve({{"policy", "nope"}, {}});
  EXPECT_TRUE(std::holds_alternative<Refused>(outcome));
  EXPECT_EQ(router_.Snapshot().live, 0u);
}

TEST_F(RouterTest, SaysWhenAnUnroutedNameIsQuiet) {
  router_.SetTable(Ordinary().Make());
  Resolution outcome = router_.Resolve({{"policy"}, {}});
  TableMaker later = Ordinary();
  later.raw().rows[0].target = NameOf("policy", 11);
  later.raw().revision = Revision(2);
  router_.SetTable(later.Make());
  EXPECT_EQ(router_.Snapshot().revision, Revision(2));
  EXPECT_EQ(router_.Snapshot().in_flight.at(NameOf("policy", 12)), 1u) << "counted over tables";
  std::get<Admitted>(outcome).admission.Release();
  EXPECT_EQ(quiet_, 1);
}

TEST_F(RouterTest, SaysWhenANameThatLeavesIsQuietThoughAnAliasNamesIt) {
  router_.SetTable(Ordinary().Make());
  Resolution outcome = router_.Resolve({{"policy"}, {}});
  TableMaker later = Ordinary();
  later.raw().rows[0].target = EngineName();
  later.raw().rows[0].mode = fleet::RowMode::kClosed;
  later.Alias("policy", "eval", 12);
  std::erase_if(later.raw().routes, [](const auto& r) { return r.name == NameOf("policy", 12); });
  router_.SetTable(later.Make());
  std::get<Admitted>(outcome).admission.Release();
  EXPECT_EQ(quiet_, 1);
}

TEST_F(RouterTest, SaysWhenTheLastRequestOfAHeldRowEndedThoughAnAliasNamesItsVersionToo) {
  TableMaker maker = Ordinary();
  maker.raw().aliases = {{AdapterName("policy"), AliasName("eval"), NameOf("policy", 12)}};
  router_.SetTable(maker.Make());
  Resolution outcome = router_.Resolve({{"policy"}, {}});
  HoldTheRow(maker);
  std::get<Admitted>(outcome).admission.Release();
  EXPECT_EQ(quiet_, 1) << "the row may wait for just that";
}

TEST_F(RouterTest, SaysWhenTheLastRequestOfLatestAtAHeldRowEndedThoughOthersGoOn) {
  router_.SetTable(Ordinary().Make());
  Resolution named = router_.Resolve({{"policy@12"}, {}});
  Resolution another = router_.Resolve({{"policy@12"}, {}});
  Resolution latest = router_.Resolve({{"policy"}, {}});
  HoldTheRow(Ordinary());
  std::get<Admitted>(another).admission.Release();
  EXPECT_EQ(quiet_, 0) << "nobody waits for it";
  std::get<Admitted>(latest).admission.Release();
  EXPECT_EQ(quiet_, 1);
  std::get<Admitted>(named).admission.Release();
  EXPECT_EQ(quiet_, 2);
}

TEST_F(RouterTest, RefusesBeyondItsLimit) {
  Router router(1, nullptr);
  router.SetTable(Ordinary().Make());
  const Resolution first = router.Resolve({{"policy"}, {}});
  EXPECT_TRUE(std::holds_alternative<Admitted>(first));
  EXPECT_EQ(Ask1(router, "policy"), "429 DOOR_FULL");
}

TEST_F(RouterTest, TellsWhatProducedAReply) {
  router_.SetTable(Ordinary().Make());
  Resolution outcome = router_.Resolve({{"policy", "policy@11"}, {}});
  const auto& resolved = std::get<Admitted>(outcome).resolved;
  EXPECT_EQ(resolved[0].epoch, Epoch(7));
  EXPECT_EQ(resolved[0].lag, 0u);
  EXPECT_EQ(resolved[1].epoch, Epoch());
  EXPECT_EQ(resolved[1].lag, 1u);
  EXPECT_EQ(resolved[1].digest.value, "sha256-xxh3:" + NameOf("policy", 11).value);
}

// An adapter that is loaded on demand, and another one that is there.
class OnDemandTest : public ::testing::Test {
 protected:
  OnDemandTest() { Set({"critic"}); }
  void Set(const std::vector<std::string>& loaded) {
    TableMaker maker;
    maker.Row("policy", RowMode::kOpen, 12).Row("critic", RowMode::kOpen, 12);
    maker.Rules({.adapter = AdapterName("policy"), .demand_wait_ms = 40});
    for (const std::string& adapter : loaded) maker.Loaded(adapter, 12);
    proxy::DoorTable table = maker.Make();
    for (proxy::DoorRow& row : table.rows) row.on_demand = true;
    table.slots = slots_;
    router_.SetTable(table);
  }
  static std::set<AdapterName> Names(const std::vector<std::string>& adapters) {
    return {adapters.begin(), adapters.end()};
  }
  Held Wait(const std::string& adapter) {
    Resolution outcome = router_.Resolve({{adapter}, std::nullopt});
    return std::get<Held>(std::move(outcome));
  }

  uint32_t slots_ = 3;
  int changes_ = 0;
  Router router_{100, [this] { ++changes_; }};
};

TEST_F(OnDemandTest, ARequestOfOneThatIsAwayWaitsAndIsNeverServedByAnother) {
  const Held held = Wait("policy");
  EXPECT_EQ(held.demands, Names({"policy"}));
  EXPECT_EQ(held.limit_ms, 40);
  EXPECT_EQ(held.too_late.reason, "NOT_RESIDENT");
  EXPECT_EQ(held.too_late.status, 503);
  EXPECT_GT(held.too_late.retry_after_s, 0);
  EXPECT_TRUE(router_.Snapshot().in_flight.empty());
  EXPECT_EQ(Ask1(router_, "policy@12"), "409 NOT_LOADED") << "named versions are not brought back";
}

TEST_F(OnDemandTest, ThoseThatWaitAreToldInTheOrderOfTheirFirstRequest) {
  Set({});
  Demand first = router_.Wait(Names({"policy"}));
  Demand other = router_.Wait(Names({"critic"}));
  Demand second = router_.Wait(Names({"policy"}));
  EXPECT_EQ(changes_, 2);
  const std::vector<AdapterName> both = {AdapterName("policy"), AdapterName("critic")};
  EXPECT_EQ(router_.Snapshot().waiting, both);
  first = Demand();
  EXPECT_EQ(router_.Snapshot().waiting, both) << "another request of it has waited since";
  second.Release();
  EXPECT_EQ(router_.Snapshot().waiting, std::vector<AdapterName>{AdapterName("critic")});
  EXPECT_EQ(changes_, 3);
}

TEST_F(OnDemandTest, ABatchWaitsForAllOfItsAdaptersAlsoForThoseThatAreThere) {
  Resolution outcome = router_.Resolve({{"critic", "policy"}, std::nullopt});
  ASSERT_TRUE(std::holds_alternative<Held>(outcome));
  EXPECT_EQ(std::get<Held>(outcome).demands, Names({"critic", "policy"}));
  EXPECT_EQ(std::get<Held>(outcome).limit_ms, 40) << "the shortest of what their policies say";
  EXPECT_TRUE(router_.Snapshot().last_admitted.empty()) << "it has not been admitted";
  Demand demand = router_.Wait(std::get<Held>(outcome).demands);
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(router_.Snapshot().waiting.size(), 2u);
  Set({"critic", "policy"});
  outcome = router_.Resolve({{"critic", "policy"}, std::nullopt});
  ASSERT_TRUE(std::holds_alternative<Admitted>(outcome));
  EXPECT_EQ(std::get<Admitted>(outcome).resolved[0].name, NameOf("critic", 12));
  EXPECT_EQ(std::get<Admitted>(outcome).resolved[1].name, NameOf("policy", 12));
}

TEST_F(OnDemandTest, ABatchOfMoreAdaptersThanTheEngineHoldsIsRefusedAtOnce) {
  slots_ = 2;
  Set({"critic"});
  Resolution outcome = router_.Resolve({{"critic", "policy"}, std::nullopt});
  ASSERT_TRUE(std::holds_alternative<Refused>(outcome));
  EXPECT_EQ(std::get<Refused>(outcome).reason, "TOO_MANY_ADAPTERS");
  EXPECT_EQ(std::get<Refused>(outcome).status, 400);
  outcome = router_.Resolve({{"policy", "policy"}, std::nullopt});
  EXPECT_TRUE(std::holds_alternative<Held>(outcome)) << "one adapter, twice";
  outcome = router_.Resolve({{"policy", "nobody"}, std::nullopt});
  ASSERT_TRUE(std::holds_alternative<Refused>(outcome)) << "nothing is loaded in vain";
  EXPECT_EQ(std::get<Refused>(outcome).message.substr(0, 13), "lora_path[1]:");
}

TEST_F(OnDemandTest, TellsWhenOneIsIdleAndWhichWasAskedLast) {
  Set({"critic", "policy"});
  for (const std::string adapter : {"policy", "critic"}) {
    Resolution outcome = router_.Resolve({{adapter}, std::nullopt});
    ASSERT_TRUE(std::holds_alternative<Admitted>(outcome));
  }
  EXPECT_EQ(changes_, 2) << "each may leave now";
  const Counts counts = router_.Snapshot();
  EXPECT_LT(counts.last_admitted.at(NameOf("policy", 12)),
            counts.last_admitted.at(NameOf("critic", 12)));
  EXPECT_GT(router_.Snapshot().sequence, counts.sequence);
  Set({"critic"});
  EXPECT_EQ(router_.Snapshot().last_admitted.size(), 1u);
}

}  // namespace
}  // namespace lorry::door
