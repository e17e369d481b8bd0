// What ends a process: signals and fault points. Each case runs in a child process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "lib/runtime/fault_point.h"
#include "lib/runtime/signals.h"
#include "tests/testing/temp_dir.h"

namespace lorry::runtime {
namespace {

// Runs `body` in a child; returns its wait status.
int InChild(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

TEST(Signals, WaitReturnsTheSignal) {
  const int status = InChild([] {
    Signals signals;
    kill(getpid(), SIGTERM);
    return signals.Wait() == SIGTERM ? 0 : 1;
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Signals, SomebodyWhoPressesCtrlCWhileItDrainsEndsTheProcessAtOnce) {
  const int status = InChild([] {
    Signals signals;
    kill(getpid(), SIGTERM);
    signals.Wait();
    kill(getpid(), SIGINT);
    pause();
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

TEST(Signals, ASupervisorMayRepeatItself) {
  const int status = InChild([] {
    {
      Signals signals;
      kill(getpid(), SIGTERM);
      signals.Wait();
      kill(getpid(), SIGTERM);
    }
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Signals, RequestStopEndsWaitFromAnotherThread) {
  Signals signals;
  std::thread other([&] { signals.RequestStop(); });
  EXPECT_EQ(signals.Wait(), 0);
  other.join();
}

// The environment is read before main, so these run this program again as a child.
int RunWithFault(const char* fault) {
  return InChild([fault] {
    setenv("LORRY_FAULT", fault, 1);
    execl("/proc/self/exe", "process_test", "--gtest_also_run_disabled_tests",
          "--gtest_filter=FaultPoint.DISABLED_PassesThree", nullptr);
    return 99;
  });
}

TEST(FaultPoint, DISABLED_PassesThree) {
  for (int i = 0; i < 3; ++i) LORRY_FAULT_POINT("test.point");
}

TEST(FaultPoint, KillsTheProcessTheNthTime) {
  for (const char* fault : {"test.point", "test.point:1", "test.point:3"}) {
    const int status = RunWithFault(fault);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << fault;
  }
}

TEST(FaultPoint, AFileNamesThePointAndIsRemovedByIt) {
  const TempDir folder;
  const std::string file = folder / "fault";
  for (const char* named : {"other.point", "test.point"}) {
    std::ofstream(file) << named << "\n";
    const int status = RunWithFault(("@" + file).c_str());
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_EQ(killed, std::string(named) == "test.point");
    EXPECT_EQ(std::ifstream(file).good(), !killed);
  }
  EXPECT_EQ(RunWithFault(("@" + file).c_str()), 0);
}

TEST(FaultPoint, OthersPass) {
  for (const char* fault : {"", "test.point:4", "other.point", "?"}) {
    const int status = RunWithFault(fault);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << fault;
  }
}

}  // namespace
}  // namespace lorry::runtime
