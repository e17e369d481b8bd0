#include "lib/program/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/flags/flag.h"

namespace lorry::program {
namespace {

TEST(Program, TakesAllDescriptorsThatItMayHave) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{std::min<rlim_t>(before.rlim_max, 64), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  RaiseDescriptorLimit();
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, std::min<rlim_t>(before.rlim_max, kMostDescriptors));
  EXPECT_EQ(after.rlim_max, before.rlim_max);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(Program, ShowsFlagsThatAreNotUtf8) {
  absl::SetFlag(&FLAGS_data_dir, "/caf\xe9");
  EXPECT_THAT(FlagsJson(), testing::HasSubstr("/caf\uFFFD"));
}

TEST(Program, LeavesAtOnceWhileHandlersRun) {
  LeaveUnless(absl::OkStatus());
  const auto leave = [] {
    LeaveUnless(absl::DeadlineExceededError("Echo x1 still runs"), absl::DataLossError("the disk"));
  };
  EXPECT_EXIT(leave(), testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace lorry::program
