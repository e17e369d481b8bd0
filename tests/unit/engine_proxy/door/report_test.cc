#include "services/engine_proxy/door/report.h"

#include <gtest/gtest.h>

namespace lorry::door {
namespace {

TEST(ReportTest, RequestsOfTheBaseModelAreToldUnderNoName) {
  Counts counts;
  EXPECT_TRUE(ReportOf(counts).in_flight.empty());
  counts.base_in_flight = 2;
  EXPECT_EQ(ReportOf(counts).in_flight.at(EngineName()), 2u);
}

}  // namespace
}  // namespace lorry::door
