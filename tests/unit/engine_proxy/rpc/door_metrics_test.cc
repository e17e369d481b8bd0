#include "services/engine_proxy/rpc/door_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

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

// More threads than there are rooms, and a scrape while they count.
TEST_F(DoorMetricsTest, AddsUpWhatItsThreadsCount) {
  constexpr int kThreads = 20;
  constexpr int kEach = 100;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this] {
      for (int i = 0; i < kEach; ++i) {
        metrics_.OnAdmitted("policy", 2);
        metrics_.OnFirstByte(4);
        metrics_.OnServed("policy", 3);
        metrics_.OnReplied("policy", 3);
        metrics_.OnDone(i % 2 == 0 ? 200 : 499, 0.5, 3);
      }
    });
  }
  registry_.Scrape();
  for (std::thread& thread : threads) thread.join();
  for (int scrape = 0; scrape < 2; ++scrape) {
    const std::string text = registry_.Scrape();
    EXPECT_THAT(text,
                AllOf(HasSubstr(Requests("policy", 2000)),
                      HasSubstr("lorry_door_adapter_reply_bytes_total{adapter=\"policy\"} 6000\n"),
                      HasSubstr("lorry_door_requests_total{code=\"200\"} 1000\n"),
                      HasSubstr("lorry_door_requests_total{code=\"499\"} 1000\n")));
    EXPECT_THAT(text,
                AllOf(HasSubstr("lorry_door_first_byte_seconds_bucket{le=\"0.0025\"} 0\n"),
                      HasSubstr("lorry_door_first_byte_seconds_bucket{le=\"0.005\"} 2000\n"),
                      HasSubstr("lorry_door_request_seconds_sum 1000\n"),
                      HasSubstr("lorry_door_admitted_lag_decisions_sum{adapter=\"policy\"} 4000\n"),
                      HasSubstr("lorry_door_done_lag_decisions_sum{adapter=\"policy\"} 6000\n")));
  }
}

// Between two scrapes, too, as nobody may scrape.
TEST_F(DoorMetricsTest, CountsTooManyAdaptersTogether) {
  for (size_t i = 0; i < metrics::kAdaptersMax + 5; ++i) {
    metrics_.OnServed("adapter-" + std::to_string(i), 1);
  }
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, AllOf(HasSubstr(Requests("adapter-0", 1)), HasSubstr(Requests("other", 5)),
                          Not(HasSubstr("adapter-1002"))));
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
