#include "services/sync_orchestrator/rpc/gauges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/metrics/per_adapter.h"

namespace lorry::sync {
namespace {

const AdapterName kPolicy("policy");
const PoolName kRollout("rollout");

Activation DecidedAt(uint64_t epoch) {
  Activation made;
  made.epoch = Epoch(epoch);
  return made;
}

MemberStatus MemberAt(uint64_t epoch) {
  MemberStatus member;
  member.pool = kRollout;
  member.standing = MemberStanding::kReady;
  fleet::ObservedRow row;
  row.adapter = kPolicy;
  row.epoch = Epoch(epoch);
  member.observed.rows = {row};
  return member;
}

// Epochs 4 to 8 were used by syncs that were broken off.
TEST(LargestLag, CountsDecisionsAndNotEpochs) {
  PoolStatus pool;
  pool.adapter = kPolicy;
  pool.pool = kRollout;
  pool.history = {DecidedAt(2), DecidedAt(3), DecidedAt(9)};
  Status status;
  status.members = {MemberAt(9), MemberAt(3)};
  EXPECT_EQ(LargestLag(status, pool), 1);
  status.members.push_back(MemberAt(1));
  EXPECT_EQ(LargestLag(status, pool), 3);
  status.members.back().standing = MemberStanding::kLost;
  EXPECT_EQ(LargestLag(status, pool), 1);
}

TEST(PoisonedVersions, AreCountedOnceHoweverManyKindsOfEnginesTheyKilled) {
  const auto verdict = [](uint64_t number, const char* release, Verdict is) {
    return VerdictStatus{.version = {kPolicy, RunId(1), VersionNumber(number)},
                         .group = EngineGroup(release),
                         .verdict = is};
  };
  Status status;
  status.verdicts = {verdict(1, "0.31", Verdict::kPoisoned), verdict(1, "0.32", Verdict::kPoisoned),
                     verdict(2, "0.31", Verdict::kPoisoned), verdict(3, "0.31", Verdict::kRefused)};
  EXPECT_EQ(PoisonedVersions(status), 2);
}

// How many series of the name there are.
int SeriesOf(metrics::Registry& registry, std::string_view name) {
  const std::vector<std::string> lines = absl::StrSplit(registry.Scrape(), '\n');
  return static_cast<int>(std::ranges::count_if(lines, [&](std::string_view line) {
    return line.starts_with(name) && line.find("adapter=") != std::string_view::npos;
  }));
}

TEST(ServingMetrics, GoWithTheirAdapter) {
  metrics::Registry registry{{.service = "sync-orchestrator", .version = "0"}};
  ServingMetrics serving(registry);
  serving.OnServing(kPolicy, kRollout, 0.5);
  serving.OnServing(kPolicy, PoolName("eval"), 0.5);
  serving.OnServing(AdapterName("critic"), kRollout, 0.5);
  EXPECT_EQ(SeriesOf(registry, "lorry_last_serving_timestamp_seconds"), 3);
  EXPECT_EQ(SeriesOf(registry, "lorry_stored_to_serving_seconds_count"), 3);
  serving.KeepOnly({"critic"});
  EXPECT_EQ(SeriesOf(registry, "lorry_last_serving_timestamp_seconds"), 1);
  EXPECT_EQ(SeriesOf(registry, "lorry_stored_to_serving_seconds_count"), 1);
}

TEST(ServingMetrics, ThoseOfAThousandAdaptersAreAllThatThereAre) {
  metrics::Registry registry{{.service = "sync-orchestrator", .version = "0"}};
  ServingMetrics serving(registry);
  const int many = static_cast<int>(metrics::kAdaptersMax) + 50;
  for (int i = 0; i < many; ++i)
    serving.OnServing(AdapterName(absl::StrCat("eval-", i)), kRollout, 0.5);
  EXPECT_EQ(SeriesOf(registry, "lorry_last_serving_timestamp_seconds"),
            static_cast<int>(metrics::kAdaptersMax) + 1)
      << "with `other`, of the rest";
}

}  // namespace
}  // namespace lorry::sync
