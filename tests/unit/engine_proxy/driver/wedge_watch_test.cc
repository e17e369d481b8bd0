// The operator's command runs once a boot, is given what it needs, and cannot hang the proxy.
#include "services/engine_proxy/driver/wedge_watch.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <future>
#include <utility>

#include "tests/testing/temp_dir.h"

namespace lorry::proxy {
namespace {

using ::testing::ElementsAre;

// And not only waiting to be reaped by whoever inherits it.
bool IsAlive(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string number, name, state;
  return stat >> number >> name >> state && state != "Z" && state != "X";
}

class WedgeWatchTest : public ::testing::Test {
 protected:
  std::string At(const std::string& name) const { return folder_ / name; }

  // Lets a watch see these boots, each for as long as it takes to look three times; empty: none.
  void Watch(const std::string& command, std::vector<std::string> boots,
             int64_t limit_ms = 60'000) {
    size_t looks = 0;
    std::promise<void> seen;
    WedgeWatch watch({.command = command,
                      .environment = {"LORRY_MEMBER=e1"},
                      .marker = At("marker"),
                      .limit_ms = limit_ms,
                      .look_every_ms = 1},
                     [&]() -> std::optional<BootId> {
                       const size_t at = looks++ / 3;
                       if (looks == boots.size() * 3 + 1) seen.set_value();
                       if (at >= boots.size() || boots[at].empty()) return std::nullopt;
                       return BootId(boots[at]);
                     });
    watch.Start();
    seen.get_future().wait();
  }
  std::vector<std::string> Lines(const std::string& name) const {
    std::ifstream file(At(name));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

 private:
  TempDir folder_;
};

TEST_F(WedgeWatchTest, RunsTheCommandOnceForEachBoot) {
  const std::string command = "echo $LORRY_MEMBER $LORRY_BOOT_ID >> " + At("out");
  Watch(command, {"", "b1", "b1", "", "b2"});
  EXPECT_THAT(Lines("out"), ElementsAre("e1 b1", "e1 b2"));
  Watch(command, {"b2"});  // a proxy that was started again
  EXPECT_EQ(Lines("out").size(), 2u);
  Watch(command, {"b3"});
  EXPECT_THAT(Lines("out"), ElementsAre("e1 b1", "e1 b2", "e1 b3"));
}

TEST_F(WedgeWatchTest, ACommandThatFailsIsNotRepeated) {
  Watch("echo ran >> " + At("out") + "; exit 3", {"b1", "b1"});
  EXPECT_THAT(Lines("out"), ElementsAre("ran"));
}

TEST_F(WedgeWatchTest, OneThatHangsIsKilledWithWhatItStarted) {
  // A limit that is over before the command has begun shows nothing.
  for (int64_t limit_ms = 300; Lines("pid").empty(); limit_ms *= 2) {
    Watch("sleep 600 & echo $! > " + At("pid") + "; wait", {"b" + std::to_string(limit_ms)},
          limit_ms);
  }
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (IsAlive(Lines("pid")[0]) && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_FALSE(IsAlive(Lines("pid")[0]));
}

// As an engine that the command starts again in the background, and that prints.
TEST_F(WedgeWatchTest, WhatTheCommandLeavesRunningMayGoOnWriting) {
  ASSERT_EQ(mkfifo(At("go").c_str(), 0600), 0);
  Watch(
      "(read line < " + At("go") + "; echo late; echo late >&2; echo $line > " + At("out") + ") &",
      {"b1"});
  std::ofstream(At("go")) << "lives\n";  // it has waited for this since the command ended
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (Lines("out").empty() && std::chrono::steady_clock::now() < until) {
  }
  EXPECT_THAT(Lines("out"), ElementsAre("lives"));
}

TEST_F(WedgeWatchTest, StopEndsIt) {
  std::promise<void> looked;
  WedgeWatch watch(
      {.command = "sleep 600", .environment = {}, .marker = At("marker"), .look_every_ms = 1},
      [&, first = true]() mutable -> std::optional<BootId> {
        if (std::exchange(first, false)) looked.set_value();
        return BootId("b1");
      });
  watch.Start();
  looked.get_future().wait();
  watch.Stop();  // within the limit of the test, not of the command
}

TEST(ParseOnWedged, TakesACommandAndNothingElse) {
  EXPECT_EQ(*ParseOnWedged(""), "");
  EXPECT_EQ(*ParseOnWedged("exec:systemctl restart sglang"), "systemctl restart sglang");
  for (const char* wrong : {"systemctl restart sglang", "exec:", "exec"}) {
    EXPECT_FALSE(ParseOnWedged(wrong).ok()) << wrong;
  }
}

}  // namespace
}  // namespace lorry::proxy
