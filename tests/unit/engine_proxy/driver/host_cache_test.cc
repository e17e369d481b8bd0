// Proxies of one host that share images: each a process of its own here, which may be killed.
#include "services/engine_proxy/driver/host_cache.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lib/base/error.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

bool Never() { return false; }

// The bytes of a version, and what a manifest says of them.
struct Version {
  std::vector<std::byte> bytes;
  std::vector<transfer::Checksum> leaves;
  Digest digest;

  explicit Version(int number, size_t size = 100'000)
      : bytes(size, static_cast<std::byte>(number)),
        leaves(transfer::LeavesOf(bytes)),
        digest{"sha256-xxh3:" + std::to_string(number)} {}
  HostCache::Wanted Wanted() const {
    return {.digest = digest, .bytes = bytes.size(), .leaves = leaves};
  }
};

struct Member {
  std::unique_ptr<transfer::ImagePool> pool;
  std::unique_ptr<HostCache> cache;

  std::unique_ptr<transfer::ImageFile> Fetch(const Version& version) {
    auto file = pool->Acquire(version.bytes.size()).value();
    std::ranges::copy(version.bytes, file->writable().begin());
    return file;
  }
};

class HostCacheTest : public ::testing::Test {
 protected:
  Member Open(const std::string& name, HostCacheLimits limits = {}) {
    Member member;
    member.pool = transfer::ImagePool::Open({.directory = root_ / ("pool-" + name)}).value();
    member.cache = HostCache::Open(root_ / "host", {}, *member.pool, limits).value();
    return member;
  }
  // A version that `member` has fetched, shared and let go of.
  void ShareUnused(Member& member, const Version& version) {
    auto file = member.Fetch(version);
    ASSERT_TRUE(member.cache->Share(version.digest, *file).ok());
    member.pool->Recycle(std::move(file));
  }
  size_t Files(const std::string& folder) const {
    const fs::directory_iterator all(root_ / folder);
    return static_cast<size_t>(std::distance(fs::begin(all), fs::end(all)));
  }
  // Runs `child` in another process, which is then there until it is killed.
  pid_t Fork(const std::function<void()>& child) {
    int ready[2];
    EXPECT_EQ(::pipe(ready), 0);
    const pid_t pid = ::fork();
    if (pid == 0) {
      child();
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    char byte = 0;
    ::close(ready[1]);
    EXPECT_EQ(::read(ready[0], &byte, 1), 1) << "the child ended";
    ::close(ready[0]);
    return pid;
  }
  static void Kill(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  TempDir root_;
};

TEST_F(HostCacheTest, TheFirstFetchesAndTheOthersFindTheSameFile) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  auto first = a.cache->Find(version.Wanted(), Never).value();
  EXPECT_EQ(first.image, nullptr);
  ASSERT_NE(first.claim, nullptr);
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  auto second = b.cache->Find(version.Wanted(), Never).value();
  ASSERT_NE(second.image, nullptr) << "without waiting for the claim's end";
  EXPECT_EQ(second.claim, nullptr);
  EXPECT_TRUE(std::ranges::equal(second.image->bytes(), version.bytes));
  EXPECT_TRUE(fs::equivalent(second.image->path(), file->path()));
  first.claim.reset();
  EXPECT_EQ(Files("host/claims"), 0u);
}

TEST_F(HostCacheTest, WhoeverWaitsGetsTheImageOnceItIsShared) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  auto first = a.cache->Find(version.Wanted(), Never).value();
  HostCache::Found second;
  std::thread waits([&] { second = b.cache->Find(version.Wanted(), Never).value(); });
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  first.claim.reset();
  waits.join();
  EXPECT_NE(second.image, nullptr);
  EXPECT_EQ(second.claim, nullptr);
}

TEST_F(HostCacheTest, AProxyThatIsKilledInAFetchIsFollowedByOneThatWaits) {
  const Version version(1);
  Member b = Open("b");
  const pid_t killed = Fork([&] {
    static Member a = Open("a");
    static auto found = a.cache->Find(version.Wanted(), Never).value();
    static auto half = a.pool->Acquire(version.bytes.size()).value();
    if (found.claim == nullptr) ::_exit(1);
  });
  HostCache::Found found;
  std::atomic<bool> ended{false};
  std::thread waits([&] {
    found = b.cache->Find(version.Wanted(), Never).value();
    ended = true;
  });
  // tidy: allow sleep: what is shown is that nothing happens meanwhile
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ended) << "while the other one lives";
  Kill(killed);
  waits.join();
  EXPECT_EQ(found.image, nullptr) << "half an image is nobody's";
  EXPECT_NE(found.claim, nullptr);
  EXPECT_EQ(Files("host/images"), 0u);
}

TEST_F(HostCacheTest, AProxyThatIsStoppedInAFetchIsNotWaitedForLong) {
  const Version version(1);
  Member b = Open("b");
  const pid_t stopped = Fork([&] {
    static Member a = Open("a");
    static auto found = a.cache->Find(version.Wanted(), Never).value();
  });
  ::kill(stopped, SIGSTOP);
  const auto found = b.cache->Find(version.Wanted(), Never).value();
  EXPECT_EQ(found.image, nullptr);
  EXPECT_EQ(found.claim, nullptr) << "it fetches for itself";
  Kill(stopped);
}

TEST_F(HostCacheTest, AFetchThatMovesIsWaitedForLonger) {
  const Version version(1);
  Member a = Open("a"), b = Open("b");
  auto first = a.cache->Find(version.Wanted(), Never).value();
  const Tick began = SteadyClock().Now();
  HostCache::Found second;
  std::thread waits([&] { second = b.cache->Find(version.Wanted(), Never).value(); });
  while (SteadyClock().Now() < began + FetchWatch::kSilentMs * 6 / 5) {
    first.claim->TellProgress();
    // tidy: allow sleep: it makes progress for longer than a silent one is waited for
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  waits.join();
  EXPECT_NE(second.image, nullptr);
}

TEST_F(HostCacheTest, AWaitEndsWhenTheImageIsNotWantedAnyMore) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  const auto first = a.cache->Find(version.Wanted(), Never).value();
  EXPECT_TRUE(absl::IsCancelled(b.cache->Find(version.Wanted(), [] { return true; }).status()));
}

TEST_F(HostCacheTest, BytesThatAreNotTheDigestsAreRemovedAndFetchedAnew) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  file->writable()[70'000] ^= std::byte{1};
  const auto found = b.cache->Find(version.Wanted(), Never).value();
  EXPECT_EQ(found.image, nullptr);
  EXPECT_NE(found.claim, nullptr);
  EXPECT_EQ(Files("host/images"), 0u);
  EXPECT_EQ(Files("pool-b"), 1u) << "its lock alone";
}

TEST_F(HostCacheTest, AnotherLengthIsAnotherImage) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  HostCache::Wanted wanted = version.Wanted();
  ++wanted.bytes;
  EXPECT_EQ(b.cache->Find(wanted, Never)->image, nullptr);
}

TEST_F(HostCacheTest, AFileIsWrittenAnewOnceNobodyUsesIt) {
  Member a = Open("a"), b = Open("b");
  const Version version(1);
  auto file = a.Fetch(version);
  ASSERT_TRUE(a.cache->Share(version.digest, *file).ok());
  const ino_t inode = [&] {
    struct stat is = {};
    ::stat(file->path().c_str(), &is);
    return is.st_ino;
  }();
  HostCache::Found found = b.cache->Find(version.Wanted(), Never).value();
  auto linked = std::move(found.image);
  a.pool->Recycle(std::move(file));
  EXPECT_EQ(b.cache->TakeUnused(version.bytes.size()), nullptr) << "b uses it";
  EXPECT_EQ(Files("host/images"), 1u);
  b.pool->Recycle(std::move(linked));
  const auto taken = a.cache->TakeUnused(version.bytes.size() - 100);
  ASSERT_NE(taken, nullptr);
  struct stat is = {};
  ::stat(taken->path().c_str(), &is);
  EXPECT_EQ(is.st_ino, inode) << "its pages are touched already";
  EXPECT_EQ(is.st_size, 99'900);
  taken->writable()[0] = std::byte{9};
  EXPECT_EQ(Files("host/images"), 0u) << "it is no image any more";
}

TEST_F(HostCacheTest, AFileThatSomebodyStillReadsIsNotWrittenAnew) {
  Member a = Open("a");
  const Version version(1);
  ShareUnused(a, version);
  const std::string path = fs::directory_iterator(root_ / "host/images")->path().string();
  const pid_t engine = Fork([&] {  // maps it, and has closed it
    const int fd = ::open(path.c_str(), O_RDONLY);
    if (::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED) ::_exit(1);
    ::close(fd);
  });
  EXPECT_EQ(a.cache->TakeUnused(version.bytes.size()), nullptr);
  Kill(engine);
  ShareUnused(a, version);
  EXPECT_NE(a.cache->TakeUnused(version.bytes.size()), nullptr) << "nobody reads this one";
}

TEST_F(HostCacheTest, WhatNobodyUsesIsBounded) {
  Member a = Open("a", {.idle_images_max = 2});
  for (int number = 1; number <= 4; ++number) ShareUnused(a, Version(number));
  a.cache->Trim();
  EXPECT_EQ(Files("host/images"), 2u);
  for (const int number : {1, 2})
    EXPECT_EQ(a.cache->Find(Version(number).Wanted(), Never)->image, nullptr);
  EXPECT_NE(a.cache->Find(Version(4).Wanted(), Never)->image, nullptr) << "the youngest stay";
}

TEST_F(HostCacheTest, WhatADeadProxyLeftGoesAtTheNextStart) {
  const Version version(1);
  Kill(Fork([&] {
    static Member a = Open("a");
    for (int number = 2; number <= 4; ++number) ShareUnused(a, Version(number));
    static auto found = a.cache->Find(version.Wanted(), Never).value();
    static auto half = a.Fetch(version);
  }));
  EXPECT_EQ(Files("host/claims"), 1u);
  const Member again = Open("a", {.idle_images_max = 1});
  EXPECT_EQ(Files("host/claims"), 0u);
  EXPECT_EQ(Files("host/images"), 1u);
  EXPECT_EQ(Files("pool-a"), 1u) << "its lock alone";
}

TEST_F(HostCacheTest, AStartLeavesTheClaimsOfOthers) {
  Member a = Open("a");
  const Version version(1);
  const auto first = a.cache->Find(version.Wanted(), Never).value();
  const Member b = Open("b");
  EXPECT_EQ(Files("host/claims"), 1u);
}

TEST_F(HostCacheTest, ADirectoryOfOthersIsRefused) {
  const auto pool = transfer::ImagePool::Open({.directory = root_ / "pool"}).value();
  fs::create_directory(root_ / "host");
  const auto refusal = [&] { return HostCache::Open(root_ / "host", {}, *pool).status(); };
  ::chmod((root_ / "host").c_str(), 0720);
  EXPECT_EQ(ReasonOf(refusal()), "DIRECTORY_UNSAFE");
  EXPECT_THAT(std::string(refusal().message()), HasSubstr("--host-cache"));
  ::chmod((root_ / "host").c_str(), 0700);
  EXPECT_TRUE(refusal().ok());
  if (::geteuid() != 0) GTEST_SKIP() << "giving a directory away takes root";
  ASSERT_EQ(::chown((root_ / "host").c_str(), 4711, 4711), 0);
  EXPECT_EQ(ReasonOf(refusal()), "DIRECTORY_UNSAFE");
  EXPECT_THAT(std::string(refusal().message()), HasSubstr("belongs to another user"));
}

TEST_F(HostCacheTest, ADirectoryOnAnotherFileSystemIsRefused) {
  const auto pool = transfer::ImagePool::Open({.directory = root_ / "pool"}).value();
  const std::string elsewhere = "/dev/shm/lorry-host-cache-" + std::to_string(::getpid());
  fs::create_directory(elsewhere);
  struct stat here = {}, there = {};
  ::stat(elsewhere.c_str(), &there);
  ::stat((root_ / "pool").c_str(), &here);
  const absl::Status status = HostCache::Open(elsewhere, {}, *pool).status();
  fs::remove_all(elsewhere);
  if (here.st_dev == there.st_dev) GTEST_SKIP() << "temporary files are in shared memory here";
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not on the file system of"));
}

TEST_F(HostCacheTest, ProxiesOfOtherReadersHaveOtherFiles) {
  Member a = Open("a");
  const Version version(1);
  ShareUnused(a, version);
  const auto pool = transfer::ImagePool::Open({.directory = root_ / "pool-all"}).value();
  const auto all = HostCache::Open(root_ / "host", ParseImageReaders("all").value(), *pool).value();
  EXPECT_EQ(all->Find(version.Wanted(), Never)->image, nullptr)
      << "one file has one mode: an engine that may read it by one proxy would lose it by the "
         "other";
}

}  // namespace
}  // namespace lorry::proxy
