#include "services/engine_proxy/rpc/door_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lorry::proxy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DoorMetricsTest : public testing::Test {
 protected:
  static std::string Requests(const std::string& adapter, int count) {
    return "lorry_door_adapter_requests_total{adapter=\"" + adapter + "\"} " +
           std::to_string(count) + "\n";
  }
  metrics::Registry registry_{{.service = "test", .version = "0"}};
  DoorMetrics metrics_{registry_};
};

TEST_F(DoorMetricsTest, CountsWhatEachAdapterIsAskedFor) {
  metrics_.OnServed("policy", 100);
  metrics_.OnServed("policy", 20);
  metrics_.OnServed("@base", 3);
  EXPECT_THAT(registry_.Scrape(),
              AllOf(HasSubstr(Requests("policy", 2)), HasSubstr(Requests("@base", 1)),
                    HasSubstr("lorry_door_adapter_reply_bytes_total{adapter=\"policy\"} 120\n")));
}

TEST_F(DoorMetricsTest, ForgetsAnAdapterThatHasLeft) {
  for (const char* adapter : {"policy", "critic", "@base", "lorry.binding"}) {
    metrics_.OnAdmitted(adapter, 1);
    metrics_.OnReplied(adapter, 1);
    metrics_.OnServed(adapter, 1);
  }
  metrics_.KeepOnly({"policy"});
  EXPECT_THAT(registry_.Scrape(),
              AllOf(HasSubstr(Requests("policy", 1)), HasSubstr(Requests("@base", 1)),
                    HasSubstr(Requests("lorry.binding", 1)), Not(HasSubstr("critic"))));
  metrics_.OnServed("critic", 1);
  EXPECT_THAT(registry_.Scrape(), HasSubstr(Requests("critic", 1))) << "it came back";
}

}  // namespace
}  // namespace lorry::proxy
