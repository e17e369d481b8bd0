#include "lib/base/file_lock.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/testing/failing_call.h"
#include "tests/testing/temp_dir.h"

namespace lorry {
namespace {

class FileLockTest : public ::testing::Test {
 protected:
  const TempDir folder_;
  const std::string path_ = folder_ / "lock";
};

TEST_F(FileLockTest, OneAtATimeHoldsIt) {
  FileLock first(path_);
  EXPECT_TRUE(first.held());
  EXPECT_EQ(first.error(), 0);
  const FileLock second(path_);
  EXPECT_FALSE(second.held());
  EXPECT_EQ(second.error(), 0) << "somebody has it, which is no error";
  EXPECT_GE(second.fd(), 0) << "what the holder wrote into it can be read";
  first = FileLock();
  EXPECT_TRUE(FileLock(path_).held());
}

TEST_F(FileLockTest, AFileSystemThatLocksNothingIsNoOtherHolder) {
  std::optional<FileLock> lock;
  // What it may call is taken from a thread for good.
  std::thread([&] {
    if (FailCalls({{.number = SYS_flock, .error = ENOLCK}})) lock.emplace(path_);
  }).join();
  if (!lock.has_value()) GTEST_SKIP() << "no seccomp here";
  EXPECT_FALSE(lock->held());
  EXPECT_EQ(lock->error(), ENOLCK);
}

TEST_F(FileLockTest, WhatIsMovedIsHeldOnce) {
  FileLock moved;
  {
    FileLock first(path_);
    moved = std::move(first);
  }
  EXPECT_TRUE(moved.held());
  EXPECT_FALSE(FileLock(path_).held());
}

TEST_F(FileLockTest, TheFileIsThisUsersAlone) {
  const FileLock lock(path_);
  EXPECT_EQ(std::filesystem::status(path_).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(FileLockTest, WhatCannotBeOpenedIsNotHeld) {
  const FileLock lock(folder_ / "none/lock");
  EXPECT_EQ(lock.error(), ENOENT);
  EXPECT_FALSE(lock.held());
}

TEST_F(FileLockTest, ALinkIsNotFollowed) {
  std::filesystem::create_symlink(folder_ / "elsewhere", path_);
  EXPECT_EQ(FileLock(path_).error(), ELOOP);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
}

TEST_F(FileLockTest, OnlyItsHolderRemovesTheFile) {
  FileLock stays(path_);
  EXPECT_FALSE(FileLock(path_, FileLock::File::kIsRemoved).held());
  EXPECT_TRUE(std::filesystem::exists(path_)) << "it was not held";
  stays = FileLock();
  EXPECT_TRUE(std::filesystem::exists(path_));
  EXPECT_TRUE(FileLock(path_, FileLock::File::kIsRemoved).held());
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// Somebody may have opened the file before its holder removed it, and lock it afterwards: the next
// one would then lock another file at the same path.
TEST_F(FileLockTest, WhatIsHeldIsTheFileAtThePath) {
  constexpr int kThreads = 4, kTimes = 2'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int held = 0; held < kTimes;) {
        const FileLock lock(path_, FileLock::File::kIsRemoved);
        if (!lock.held()) continue;
        ++held;
        struct stat named = {}, opened = {};
        ASSERT_EQ(::stat(path_.c_str(), &named), 0);
        ASSERT_EQ(::fstat(lock.fd(), &opened), 0);
        ASSERT_EQ(named.st_ino, opened.st_ino);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lorry
