#include "services/engine_proxy/rpc/proxy_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lorry::proxy {
namespace {

using ::testing::HasSubstr;

TEST(WithoutSlot, CountsWhatWaitsAndNotWhatFillsTheEngine) {
  fleet::Observed observed;
  observed.limits.slots = 2;
  observed.residencies.resize(3);
  observed.residencies[0].state = observed.residencies[1].state = fleet::ResidencyState::kLoaded;
  observed.residencies[2].state = fleet::ResidencyState::kFetched;
  EXPECT_EQ(WithoutSlot(observed), 0) << "it is on disk until it is asked for";
  observed.residencies[2].no_slot = true;
  EXPECT_EQ(WithoutSlot(observed), 1);
}

// An engine that died of something else keeps no version.
TEST(ProxyMetrics, AnUnloadThatItsEnginesEndBrokeMissedNoDeadline) {
  metrics::Registry registry{{.service = "engine-proxy", .version = "0"}};
  ProxyMetrics metrics(registry);
  metrics.OnUnloaded(Outcome::kBroken);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("lorry_proxy_unload_total{outcome=\"broken\"} 1"));
  EXPECT_THAT(text, HasSubstr("lorry_proxy_unload_total{outcome=\"deadline\"} 0"));
  metrics.OnUnloaded(Outcome::kUnknown);
  EXPECT_THAT(registry.Scrape(), HasSubstr("lorry_proxy_unload_total{outcome=\"deadline\"} 1"));
}

}  // namespace
}  // namespace lorry::proxy
