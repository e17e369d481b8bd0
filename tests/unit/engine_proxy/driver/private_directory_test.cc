// Directories and locks that another user of the host may have put in our way.
#include "services/engine_proxy/driver/private_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/engine_claim.h"
#include "tests/testing/failing_call.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PrivateDirectoryTest : public ::testing::Test {
 protected:
  PrivateDirectoryTest() : root_(::testing::TempDir() + "/private-" + std::to_string(::getpid())) {
    fs::remove_all(root_);
    fs::create_directory(root_);
    ::chmod(root_.c_str(), 0700);
  }
  ~PrivateDirectoryTest() override { fs::remove_all(root_); }

  static std::string Refusal(const std::string& path) {
    const absl::Status status = MakePrivateDirectory(path);
    return status.ok() ? "" : ReasonOf(status) + ": " + std::string(status.message());
  }

  const std::string root_;
};

TEST_F(PrivateDirectoryTest, IsMadeWithItsParentsForThisUserAlone) {
  EXPECT_EQ(Refusal(root_ + "/a/b"), "");
  for (const char* path : {"/a", "/a/b"})
    EXPECT_EQ(fs::status(root_ + path).permissions(), fs::perms(0700)) << path;
  EXPECT_EQ(Refusal(root_ + "/a/b"), "") << "again";
}

TEST_F(PrivateDirectoryTest, OneThatOthersMayWriteToIsRefused) {
  fs::create_directory(root_ + "/open");
  for (const mode_t mode : {0777, 0720, 01777}) {
    ::chmod((root_ + "/open").c_str(), mode);
    EXPECT_THAT(Refusal(root_ + "/open"), HasSubstr("DIRECTORY_UNSAFE")) << std::oct << mode;
  }
}

TEST_F(PrivateDirectoryTest, OneOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a directory away takes root";
  fs::create_directory(root_ + "/theirs");
  ASSERT_EQ(::chown((root_ + "/theirs").c_str(), 4711, 4711), 0);
  EXPECT_THAT(Refusal(root_ + "/theirs"), HasSubstr("belongs to another user"));
}

TEST_F(PrivateDirectoryTest, ALinkIsRefused) {
  fs::create_directory(root_ + "/target");
  fs::create_symlink(root_ + "/target", root_ + "/link");
  EXPECT_THAT(Refusal(root_ + "/link"), HasSubstr("is a link"));
  std::ofstream(root_ + "/file") << "x";
  EXPECT_THAT(Refusal(root_ + "/file"), HasSubstr("DIRECTORY_UNSAFE"));
}

TEST_F(PrivateDirectoryTest, AParentThatOthersMayChangeIsTold) {
  fs::create_directories(root_ + "/volume/images");
  ::chmod((root_ + "/volume").c_str(), 0777);
  EXPECT_EQ(UnsafeParentOf(root_ + "/volume/images"), fs::absolute(root_ + "/volume").string());
  ::chmod((root_ + "/volume").c_str(), 01777);
  EXPECT_EQ(UnsafeParentOf(root_ + "/volume/images"), "") << "sticky, as /dev/shm";
}

TEST_F(PrivateDirectoryTest, ImagesAreSharedByDefaultWhereTheyLieByDefault) {
  EXPECT_EQ(HostCacheRoot("auto", ""), SharedMemoryDirectory() + "/.images");
  EXPECT_EQ(HostCacheRoot("auto", "/volume"), "") << "it may be another file system";
  EXPECT_EQ(HostCacheRoot("/volume/shared", "/volume/a"), "/volume/shared");
  EXPECT_EQ(HostCacheRoot("off", ""), "");
}

TEST_F(PrivateDirectoryTest, ReadersAreTheOwnerAllOrAGroup) {
  EXPECT_EQ(ParseImageReaders("owner")->directories, 0700u);
  EXPECT_EQ(ParseImageReaders("all")->files, 0644u);
  EXPECT_EQ(ParseImageReaders("4711")->group, 4711u);
  EXPECT_EQ(ParseImageReaders("root")->group, 0u);
  EXPECT_FALSE(ParseImageReaders("no such group").ok());
}

TEST_F(PrivateDirectoryTest, AnEngineIsClaimedOnce) {
  auto first = ClaimEngine(root_ + "/claims", "127.0.0.1", 30000);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ReasonOf(ClaimEngine(root_ + "/claims", "localhost", 30000).status()),
            "ENGINE_CLAIMED");
  EXPECT_TRUE(ClaimEngine(root_ + "/claims", "127.0.0.1", 30001).ok());
  *first = FileLock();
  EXPECT_TRUE(fs::is_empty(root_ + "/claims")) << "the lock goes with its owner";
  EXPECT_TRUE(ClaimEngine(root_ + "/claims", "127.0.0.1", 30000).ok());
}

TEST_F(PrivateDirectoryTest, WhatAKilledProxyLeftGoesWithTheNextClaim) {
  const std::string claims = root_ + "/claims";
  auto lives = ClaimEngine(claims, "127.0.0.1", 30001);
  std::ofstream(claims + "/engine-127.0.0.1-30002.lock");
  auto next = ClaimEngine(claims, "127.0.0.1", 30000);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(std::distance(fs::directory_iterator(claims), {}), 2);
  EXPECT_EQ(ReasonOf(ClaimEngine(claims, "127.0.0.1", 30001).status()), "ENGINE_CLAIMED");
}

// Proxies of one `lorry up` start together, after a life in which all were killed; and a program
// that ends removes the directory where it is empty.
TEST_F(PrivateDirectoryTest, WhoLooksForLeftClaimsIsInNobodysWay) {
  const std::string claims = root_ + "/claims";
  std::vector<std::thread> proxies;
  for (uint16_t port = 30000; port < 30004; ++port) {
    proxies.emplace_back([&, port] {
      for (int life = 0; life < 300; ++life) {
        {
          const auto claim = ClaimEngine(claims, "127.0.0.1", port);
          EXPECT_TRUE(claim.ok()) << claim.status();
        }
        if (life % 3 == 0) {
          std::ofstream(absl::StrCat(claims, "/engine-127.0.0.1-", port + 1, ".lock"));
        } else if (life % 8 == 1) {
          const int turn = ::open(claims.c_str(), O_RDONLY | O_DIRECTORY);
          ::flock(turn, LOCK_EX);
          struct stat is = {};
          if (::fstat(turn, &is) == 0 && is.st_nlink > 0) ::rmdir(claims.c_str());
          ::close(turn);
        }
      }
    });
  }
  for (std::thread& proxy : proxies) proxy.join();
}

// As a program that was stopped while it looked.
TEST_F(PrivateDirectoryTest, WhoNeverEndsItsTurnIsNotWaitedForWithoutEnd) {
  const std::string claims = root_ + "/claims";
  ASSERT_TRUE(ClaimEngine(claims, "127.0.0.1", 30000).ok());
  const int turn = ::open(claims.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(turn, LOCK_EX), 0);
  EXPECT_EQ(ReasonOf(ClaimEngine(claims, "127.0.0.1", 30000).status()), "DISK_FAILED");
  ::close(turn);
  EXPECT_TRUE(ClaimEngine(claims, "127.0.0.1", 30000).ok());
}

TEST_F(PrivateDirectoryTest, AFileSystemThatLocksNothingIsNotTakenForAnotherProxy) {
  std::optional<absl::Status> refused;
  // What it may call is taken from a thread for good.
  std::thread([&] {
    if (FailCalls({{.number = SYS_flock, .error = ENOLCK}}))
      refused = ClaimEngine(root_ + "/claims", "127.0.0.1", 30000).status();
  }).join();
  if (!refused.has_value()) GTEST_SKIP() << "no seccomp here";
  EXPECT_THAT(std::string(refused->message()), HasSubstr("No locks available"));
}

TEST_F(PrivateDirectoryTest, NoOtherUserHoldsAClaim) {
  fs::create_directory(root_ + "/claims");
  ::chmod((root_ + "/claims").c_str(), 01777);
  EXPECT_EQ(ReasonOf(ClaimEngine(root_ + "/claims", "127.0.0.1", 30000).status()),
            "DIRECTORY_UNSAFE");
}

}  // namespace
}  // namespace lorry::proxy
