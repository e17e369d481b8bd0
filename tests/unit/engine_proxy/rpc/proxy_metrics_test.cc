#include "services/engine_proxy/rpc/proxy_metrics.h"

#include <gtest/gtest.h>

namespace lorry::proxy {
namespace {

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

}  // namespace
}  // namespace lorry::proxy
