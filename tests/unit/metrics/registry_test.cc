#include "lib/metrics/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <sstream>
#include <string>

#include "lib/metrics/per_adapter.h"
#include "lib/metrics/tally.h"

namespace lorry::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const BuildInfo kInfo = {.service = "adapter-store", .version = "0.1.0"};

TEST(Registry, SaysWhatRunsAndSinceWhen) {
  Registry registry(kInfo);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("lorry_build_info{service=\"adapter-store\",version=\"0.1.0\"} 1"));
  EXPECT_THAT(text, HasSubstr("# TYPE process_start_time_seconds gauge"));
}

TEST(Registry, SaysWhatTheProcessUses) {
  Registry registry(kInfo);
  const auto figure = [&](const std::string& name) {
    const std::string text = registry.Scrape();
    const size_t at = text.find("\n" + name + " ");
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
  };
  EXPECT_GT(figure("process_resident_memory_bytes"), 1e6);
  EXPECT_GE(figure("process_max_fds"), figure("process_open_fds"));
  const double open_before = figure("process_open_fds");
  FILE* const one_more = std::fopen("/dev/null", "r");
  EXPECT_EQ(figure("process_open_fds"), open_before + 1);
  std::fclose(one_more);
  const double cpu_before = figure("process_cpu_seconds_total");
  while (figure("process_cpu_seconds_total") < cpu_before + 0.01) {
  }
}

TEST(Registry, HandlesCount) {
  Registry registry(kInfo);
  Counter bytes = registry.AddCounter("lorry_test_bytes_total", "Bytes", {{"transport", "ucx"}});
  bytes.Add(4096);
  bytes.Add();
  Gauge version = registry.AddGauge("lorry_test_version", "Version");
  version.Set(7);
  version.Add(-2);
  Histogram seconds = registry.AddHistogram("lorry_test_seconds", "Seconds", {0.1, 1});
  seconds.Observe(0.5);
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("lorry_test_bytes_total{transport=\"ucx\"} 4097"));
  EXPECT_THAT(text, HasSubstr("lorry_test_version 5"));
  EXPECT_THAT(text, HasSubstr("lorry_test_seconds_bucket{le=\"1\"} 1"));
  EXPECT_EQ(bytes.value(), 4097);
}

// A value at a bucket's edge is in it, and one above all of them is counted, too.
TEST(HistogramTally, ComesToWhatTheHistogramWouldHaveSeen) {
  Registry registry(kInfo);
  const Buckets buckets = {0.1, 1};
  Histogram seen = registry.AddHistogram("lorry_test_seconds", "Seconds", buckets, {{"by", "x"}});
  Histogram told = registry.AddHistogram("lorry_test_seconds", "Seconds", buckets, {{"by", "y"}});
  HistogramTally tally(buckets);
  for (const double value : {0.0, 0.1, 0.5, 1.0, 7.0, 8.0}) {
    seen.Observe(value);
    tally.Observe(value);
    if (value == 0.5) tally.MoveTo(told);
  }
  tally.MoveTo(told);
  tally.MoveTo(told);
  std::istringstream lines(registry.Scrape());
  std::string by_x, by_y;
  for (std::string line; std::getline(lines, line);) {
    const size_t label = line.find("by=\"");
    if (label == std::string::npos) continue;
    std::string& of = line[label + 4] == 'x' ? by_x : by_y;
    line[label + 4] = '-';
    of += line + "\n";
  }
  EXPECT_THAT(by_x, HasSubstr("le=\"+Inf\"} 6"));
  EXPECT_EQ(by_x, by_y);
}

TEST(Registry, TheSameNameAndLabelsAreTheSameMetric) {
  Registry registry(kInfo);
  registry.AddCounter("lorry_test_total", "Things").Add(1);
  registry.AddCounter("lorry_test_total", "Things").Add(1);
  EXPECT_EQ(registry.AddCounter("lorry_test_total", "Things").value(), 2);
}

TEST(Registry, AHandleOfNothingCountsNowhere) {
  Counter().Add();
  Gauge().Set(1);
  Histogram().Observe(1);
  EXPECT_EQ(Counter().value(), 0);
}

TEST(Registry, RemovedGaugesLeaveTheScrape) {
  Registry registry(kInfo);
  registry.AddGauge("lorry_test_version", "Version", {{"adapter", "gone"}}).Set(1);
  registry.Remove("lorry_test_version", {{"adapter", "gone"}});
  registry.Remove("lorry_test_version", {{"adapter", "never there"}});
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("gone")));
}

TEST(Registry, RefreshesBeforeEachScrape) {
  Registry registry(kInfo);
  Gauge scrapes = registry.AddGauge("lorry_test_scrapes", "Scrapes");
  registry.OnScrape([&] { scrapes.Add(1); });
  registry.Scrape();
  EXPECT_THAT(registry.Scrape(), HasSubstr("lorry_test_scrapes 2"));
}

TEST(RegistryDeathTest, MistakesEndTheProcess) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Registry registry(kInfo);
  registry.AddCounter("lorry_test_total", "Things");
  EXPECT_DEATH(registry.AddGauge("lorry_test_total", "Things"), "CHECK failed");
  EXPECT_DEATH(registry.AddCounter("lorry-dashed_total", "Things"), "CHECK failed");
}

class PerAdapterTest : public testing::Test {
 protected:
  Registry registry_{kInfo};
  PerAdapter<Counter> requests_{
      [this](const std::string& adapter) {
        return registry_.AddCounter("lorry_test_requests_total", "Requests",
                                    {{"adapter", adapter}});
      },
      [this](const std::string& adapter) {
        registry_.Remove("lorry_test_requests_total", {{"adapter", adapter}});
      }};
};

TEST_F(PerAdapterTest, CapsTheLabel) {
  for (size_t i = 0; i < kAdaptersMax + 5; ++i) requests_.For("adapter-" + std::to_string(i)).Add();
  requests_.For("adapter-0").Add();
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("{adapter=\"adapter-0\"} 2"));
  EXPECT_THAT(text, HasSubstr("{adapter=\"other\"} 5"));
  EXPECT_THAT(text, Not(HasSubstr("adapter-1002")));
}

// Otherwise a thousand runs of one's own would leave no label for the next one.
TEST_F(PerAdapterTest, GoesWithItsAdapter) {
  for (size_t i = 0; i < kAdaptersMax + 5; ++i) requests_.For("adapter-" + std::to_string(i)).Add();
  requests_.KeepOnly({"adapter-7"});
  EXPECT_THAT(registry_.Scrape(), Not(HasSubstr("adapter-0")));
  requests_.For("adapter-7").Add();
  requests_.For("next").Add();
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("{adapter=\"adapter-7\"} 2"));
  EXPECT_THAT(text, HasSubstr("{adapter=\"next\"} 1"));
  EXPECT_THAT(text, HasSubstr("{adapter=\"other\"} 5"));
}

// A pause, a rollout or a version that a barrier holds up may take so long, and a quantile of what
// lies beyond the last bucket says nothing.
TEST(Registry, TellsHowManyMinutesSomethingTook) {
  Registry registry(kInfo);
  registry.AddHistogram("lorry_test_seconds", "Seconds", DurationBuckets()).Observe(599);
  EXPECT_THAT(registry.Scrape(), AllOf(HasSubstr("lorry_test_seconds_bucket{le=\"300\"} 0"),
                                       HasSubstr("lorry_test_seconds_bucket{le=\"600\"} 1")));
}

#ifdef LORRY_PROMTOOL
TEST(Registry, PromtoolFindsNothingWrong) {
  Registry registry(kInfo);
  registry.AddCounter("lorry_test_bytes_total", "Bytes").Add();
  registry.AddHistogram("lorry_test_duration_seconds", "Seconds", DurationBuckets()).Observe(1);
  FILE* tool = popen(LORRY_PROMTOOL " check metrics 2>&1", "w");
  ASSERT_NE(tool, nullptr);
  std::fputs(registry.Scrape().c_str(), tool);
  EXPECT_EQ(pclose(tool), 0);
}
#endif

}  // namespace
}  // namespace lorry::metrics
