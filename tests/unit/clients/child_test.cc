// Children of `lorry up`: what they say, how they end, that none is left.
#include "clients/cli/child.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "tests/testing/temp_dir.h"

namespace lorry::cli {
namespace {

using ::testing::HasSubstr;

class ChildTest : public ::testing::Test {
 protected:
  std::unique_ptr<Child> Shell(const std::string& script) {
    auto child = Child::Start({.name = "shell",
                               .binary = "/bin/sh",
                               .arguments = {"-c", script, "sh", ready_file()},
                               .ready_file = ready_file(),
                               .log_file = folder_ / "log"});
    LORRY_CHECK(child.ok());
    return *std::move(child);
  }
  std::string ready_file() const { return folder_ / "ready.json"; }

  // Returns once the process has ended, without taking its status.
  static void AwaitEnd(const Child& child) {
    siginfo_t info;
    while (::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT) < 0) {
      if (errno != EINTR) return;
    }
  }

  const TempDir folder_;
};

TEST_F(ChildTest, SaysWhatItWroteAndHowItEnded) {
  const auto child = Shell("echo '{\"grpc\": \"here:1\"}' > $1; echo its last words >&2; exit 3");
  AwaitEnd(*child);
  EXPECT_FALSE(child->Running());
  EXPECT_EQ(child->HowItEnded(), "ended with status 3");
  ASSERT_TRUE(child->ReadyFile().has_value());
  EXPECT_EQ((*child->ReadyFile())["grpc"], "here:1");
  EXPECT_THAT(child->LastWords(), HasSubstr("its last words"));
}

TEST_F(ChildTest, IsNotReadyBeforeItSaysSo) {
  const auto child = Shell("kill -STOP $$");
  EXPECT_TRUE(child->Running());
  EXPECT_FALSE(child->ReadyFile().has_value());
}

TEST_F(ChildTest, EndsBySignal) {
  const auto child = Shell("kill -STOP $$");
  child->Signal(SIGKILL);
  AwaitEnd(*child);
  EXPECT_FALSE(child->Running());
  EXPECT_EQ(child->HowItEnded(), "was killed by signal 9");
}

TEST_F(ChildTest, LeavesNoProcessBehind) {
  pid_t pid = 0;
  {
    const auto child = Shell("kill -STOP $$");
    pid = child->pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(ChildTest, AMissingProgramIsAnError) {
  const auto child = Child::Start({.name = "none", .binary = folder_ / "none"});
  EXPECT_EQ(ReasonOf(child.status()), "BINARY_MISSING");
}

}  // namespace
}  // namespace lorry::cli
