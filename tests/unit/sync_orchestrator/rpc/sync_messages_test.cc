#include "services/sync_orchestrator/rpc/sync_messages.h"

#include <gtest/gtest.h>

#include <map>

#include "lib/base/error.h"
#include "services/sync_orchestrator/driver/sync_observer.h"

namespace lorry::sync {
namespace {

Selector Parsed(std::string_view text) { return ParseSelector(text).value(); }

TEST(ParseSelector, TheBareNameIsLatest) {
  EXPECT_EQ(Parsed("policy").kind, Selector::Kind::kLatest);
  EXPECT_EQ(Parsed("policy@latest").kind, Selector::Kind::kLatest);
  EXPECT_EQ(Parsed("policy").adapter, AdapterName("policy"));
}

TEST(ParseSelector, NumbersAreVersionsOfTheCurrentRunInBothSpellings) {
  for (const char* text : {"policy@12", "policy-v12"}) {
    EXPECT_EQ(Parsed(text).kind, Selector::Kind::kNumber) << text;
    EXPECT_EQ(Parsed(text).number, VersionNumber(12)) << text;
    EXPECT_EQ(Parsed(text).adapter, AdapterName("policy")) << text;
  }
}

TEST(ParseSelector, OtherWordsAreAliases) {
  EXPECT_EQ(Parsed("policy@eval").alias, AliasName("eval"));
  EXPECT_EQ(Parsed("policy@newest").kind, Selector::Kind::kNewest);
}

TEST(ParseSelector, WhatIsNoNameIsRefused) {
  for (const char* text : {"", "@12", "Policy", "policy@", "policy@../x", "-v12"}) {
    EXPECT_EQ(ReasonOf(ParseSelector(text).status()), "NAME_INVALID") << text;
  }
}

TEST(SyncObserver, MeasuresThePhasesOfASync) {
  std::map<std::string, double> phases;
  SyncObserver observer(
      {.phase = [&](std::string_view phase, double s) { phases[std::string(phase)] = s; }});
  const VersionKey v1{AdapterName("policy"), RunId(1), VersionNumber(1)};
  const PoolName pool("rollout");
  observer.OnPersisted({{"sync/policy/rollout", SyncRecord{.version = {.key = v1}}}}, 1'000, 1'010);
  observer.OnPersisted({{"decision/policy/rollout", DecisionRecord{.version = v1, .commit = true}}},
                       3'000, 3'020);
  observer.OnActive(v1, pool, 3'050);
  const PhaseTimes times = observer.Times(v1, pool, 900, 9'999);
  EXPECT_EQ(times.wait_ms, 100);
  EXPECT_EQ(times.stage_ms, 2'000);
  EXPECT_EQ(times.commit_ms, 20);
  EXPECT_EQ(times.activate_ms, 30);
  EXPECT_DOUBLE_EQ(phases["stage"], 2.0);
}

}  // namespace
}  // namespace lorry::sync
