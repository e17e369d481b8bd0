// Files that are made before anybody needs them: when there are any, who gets them, when they go.
#include "lib/blob/spare_files.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>

#include "lib/base/error.h"
#include "lib/blob/local_store.h"
#include "tests/testing/temp_dir.h"

namespace lorry::blob {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kBytes = SpareFiles::kBytesMin;
constexpr milliseconds kNow{0}, kNever{3'600'000};

// Those that may be taken.
std::vector<std::string> SparesIn(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().string().find("SPARE-") != std::string::npos)
      files.push_back(entry.path().string());
  }
  return files;
}

ino_t InodeOf(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

// All pages of the file are in memory.
bool IsWarm(const std::string& path, uint64_t bytes) {
  const auto fd = Fd::Open(path, O_RDONLY);
  const auto file = MappedFile::Map(*fd, /*writable=*/false);
  std::vector<unsigned char> pages(bytes / 4096);
  if (mincore(file->bytes().data(), bytes, pages.data()) != 0) return false;
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

template <typename Condition>
bool Comes(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    sched_yield();
  }
  return true;
}

class SpareFilesTest : public testing::Test {
 public:
  std::string Path(const std::string& name) const { return dir_ / name; }
  std::string directory() const { return dir_ / ""; }
  SpareFiles::Options Options() const { return {.directory = directory(), .delay = kNow}; }
  size_t Count() const { return SparesIn(directory()).size(); }

  const TempDir dir_;
};

TEST_F(SpareFilesTest, OneIsWarmAndIsTakenOnceByItsSize) {
  SpareFiles spares(Options());
  spares.Prepare(kBytes);
  ASSERT_TRUE(Comes([&] { return Count() == 1 && IsWarm(SparesIn(directory())[0], kBytes); }));
  const ino_t inode = InodeOf(SparesIn(directory())[0]);
  EXPECT_FALSE(spares.Take(kBytes + 1, Path("other")));
  EXPECT_TRUE(spares.Take(kBytes, Path("taken")));
  EXPECT_EQ(InodeOf(Path("taken")), inode);
  EXPECT_EQ(std::filesystem::file_size(Path("taken")), kBytes);
  EXPECT_FALSE(spares.Take(kBytes, Path("again")));
}

TEST_F(SpareFilesTest, SmallOnesAreNotMadeNorThoseForWhichThereIsNoRoom) {
  auto options = Options();
  std::atomic<bool> asked = false;
  options.has_room = [&](uint64_t bytes) {
    EXPECT_EQ(bytes, kBytes);
    asked = true;
    return false;
  };
  SpareFiles spares(options);
  spares.Prepare(kBytes - 1);
  spares.Prepare(kBytes);
  EXPECT_TRUE(Comes([&] { return asked.load(); }));
  spares.Stop();
  EXPECT_EQ(Count(), 0);
}

TEST_F(SpareFilesTest, TheOldestGoesWhereTheyWouldBeTooMany) {
  auto options = Options();
  options.bytes_max = 2 * kBytes + 2 * 4096;
  SpareFiles spares(options);
  const auto make = [&](uint64_t bytes) {  // what is asked for last is made
    return Comes([&] {
      spares.Prepare(bytes);
      return std::ranges::any_of(SparesIn(directory()), [&](const std::string& path) {
        std::error_code gone;  // made way meanwhile
        return std::filesystem::file_size(path, gone) == bytes;
      });
    });
  };
  ASSERT_TRUE(make(kBytes));
  ASSERT_TRUE(make(kBytes + 4096));
  EXPECT_EQ(Count(), 2);
  ASSERT_TRUE(make(kBytes + 1));
  EXPECT_EQ(Count(), 2);
  EXPECT_FALSE(spares.Take(kBytes, Path("oldest")));
  EXPECT_TRUE(spares.Take(kBytes + 4096, Path("newer")));
}

TEST_F(SpareFilesTest, TheEndDoesNotWaitForOneThatIsToBeMade) {
  auto options = Options();
  options.delay = kNever;
  SpareFiles spares(options);
  spares.Prepare(kBytes);
  spares.Stop();
  spares.Prepare(kBytes);
  spares.Stop();
  EXPECT_EQ(Count(), 0);
}

// Seals a blob and waits for what is made after it.
absl::Status Seal(Store& store, const std::string& key, uint64_t bytes) {
  auto staging = store.Create(key, bytes);
  LORRY_RETURN_IF_ERROR(staging.status());
  std::memset((*staging)->bytes().data(), 'x', bytes);
  return (*staging)->Seal();
}

TEST_F(SpareFilesTest, ABlobOfTheSizeOfTheLastIsWrittenIntoOne) {
  const std::string root = Path("blobs");
  auto store = *OpenLocalStore({.root = root, .spare_after = kNow});
  ASSERT_TRUE(Seal(*store, "a", kBytes).ok());
  ASSERT_TRUE(Comes([&] { return !SparesIn(root + "/creating").empty(); }));
  const ino_t inode = InodeOf(SparesIn(root + "/creating")[0]);
  const auto staging = *store->Create("b", kBytes);
  EXPECT_EQ(InodeOf(root + "/staging/b"), inode);
  EXPECT_TRUE(std::ranges::all_of(staging->bytes(), [](std::byte b) { return b == std::byte{}; }));
  EXPECT_THAT(*store->List(), testing::SizeIs(2)) << "spares are nobody's blobs";
}

TEST_F(SpareFilesTest, WhatAProcessLeftIsSweptAtTheNextStart) {
  const std::string root = Path("blobs");
  OpenLocalStore({.root = root})->reset();
  ASSERT_TRUE(Fd::Open(root + "/creating/SPARE-7", O_RDWR | O_CREAT).ok());
  const auto store = *OpenLocalStore({.root = root});
  EXPECT_THAT(SparesIn(root + "/creating"), testing::IsEmpty());
}

// A disk of 8 MiB; false where nobody may mount one.
bool MountSmallDisk(const std::string& mount_point) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", mount_point.c_str(), "tmpfs", 0, "size=8m") == 0;
}

// In a child, so that the mount goes with its namespace: its exit status.
int InChild(const std::function<int()>& run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// How many blobs it takes.
int FillSmallDisk(const std::string& mount_point, milliseconds spare_after) {
  if (!MountSmallDisk(mount_point)) return 77;
  const auto store = *OpenLocalStore({.root = mount_point + "/blobs", .spare_after = spare_after});
  const std::string creating = mount_point + "/blobs/creating";
  for (int stored = 0;; ++stored) {
    const absl::Status sealed = Seal(*store, "k" + std::to_string(stored), kBytes);
    if (!sealed.ok()) return ReasonOf(sealed) == "DISK_FULL" ? stored : 70;
    // While there is room for one, one is there before the next blob comes.
    if (spare_after == kNow && stored < 3 && !Comes([&] { return !SparesIn(creating).empty(); }))
      return 71;
  }
}

TEST_F(SpareFilesTest, AFullDiskTakesAsManyBlobsAsWithoutThem) {
  const auto stored = [&](milliseconds spare_after) {
    return InChild([&] { return FillSmallDisk(directory(), spare_after); });
  };
  const int without = stored(kNever);
  if (without == 77) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_THAT(without, testing::AllOf(testing::Ge(5), testing::Le(8)));
  EXPECT_EQ(stored(kNow), without);
}

TEST_F(SpareFilesTest, ALargerBlobGetsTheRoomThatASpareTakes) {
  const int status = InChild([&] {
    if (!MountSmallDisk(directory())) return 77;
    const auto store = *OpenLocalStore({.root = Path("blobs"), .spare_after = kNow});
    if (!Seal(*store, "a", 2 * kBytes).ok()) return 1;
    if (!Comes([&] { return !SparesIn(Path("blobs/creating")).empty(); })) return 2;
    return Seal(*store, "b", 5 * kBytes).ok() ? 0 : 3;
  });
  if (status == 77) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lorry::blob
