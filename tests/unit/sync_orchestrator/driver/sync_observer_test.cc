#include "services/sync_orchestrator/driver/sync_observer.h"

#include <gtest/gtest.h>

#include <map>

namespace lorry::sync {
namespace {

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
