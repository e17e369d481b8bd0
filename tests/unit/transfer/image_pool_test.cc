#include "lib/transfer/image_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lib/base/error.h"
#include "lib/transfer/ranges.h"
#include "tests/testing/temp_dir.h"

namespace lorry::transfer {
namespace {

constexpr uint64_t kSize = 64 * 1024;

class ImagePoolTest : public testing::Test {
 public:
  std::unique_ptr<ImagePool> Open() {
    return *ImagePool::Open({.directory = directory_.path(), .idle_files_max = 2});
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      if (entry.path().filename() != ".lorry-pool-lock") names.push_back(entry.path().filename());
    }
    return names;
  }
  TempDir directory_;
};

TEST_F(ImagePoolTest, GivesARetiredFileToTheNextVersion) {
  const auto pool = Open();
  auto first = *pool->Acquire(kSize);
  const auto* where = first->bytes().data();
  ASSERT_TRUE(first->MoveTo(directory_ / "v1.safetensors").ok());
  pool->Recycle(std::move(first));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "v1.safetensors"));
  auto second = *pool->Acquire(kSize - 100);
  EXPECT_EQ(second->bytes().data(), where) << "its pages are touched already";
  EXPECT_EQ(second->size(), kSize - 100);
  EXPECT_EQ(std::filesystem::file_size(second->path()), kSize - 100);
  EXPECT_EQ(pool->counts().recycled, 1u);
  EXPECT_EQ(pool->counts().busy_bytes, kSize - 100);
}

TEST_F(ImagePoolTest, DoesNotGiveAFileThatIsTooSmallOrMuchTooLarge) {
  const auto pool = Open();
  pool->Recycle(*pool->Acquire(kSize));
  auto larger = *pool->Acquire(kSize + 1), smaller = *pool->Acquire(kSize / 2);
  EXPECT_EQ(pool->counts().recycled, 0u);
  EXPECT_EQ(pool->counts().idle_bytes, kSize);
}

// By an operator, to make room: writing what the file lost would end the process.
TEST_F(ImagePoolTest, AFileThatWasCutIsGivenToNobody) {
  const auto pool = Open();
  const auto cut = [](const std::string& path) { std::filesystem::resize_file(path, 10); };
  auto in_use = *pool->Acquire(kSize), idle = *pool->Acquire(kSize);
  cut(in_use->path());
  EXPECT_FALSE(in_use->IsWhole());
  pool->Recycle(std::move(in_use));
  pool->Recycle(std::move(idle));
  ASSERT_EQ(Files().size(), 1u);
  cut(directory_ / Files()[0]);
  std::ranges::fill((*pool->Acquire(kSize))->writable(), std::byte{1});
  EXPECT_EQ(pool->counts().recycled, 0u);
  EXPECT_EQ(pool->counts().idle_bytes, 0u);
}

TEST_F(ImagePoolTest, AFileThatWasRemovedIsGivenToNobody) {
  const auto pool = Open();
  pool->Recycle(*pool->Acquire(kSize));
  std::filesystem::remove(directory_ / Files().at(0));
  EXPECT_TRUE(std::filesystem::exists((*pool->Acquire(kSize))->path()));
  EXPECT_EQ(pool->counts().recycled, 0u);
}

TEST_F(ImagePoolTest, KeepsABoundedNumber) {
  const auto pool = Open();
  std::vector<std::unique_ptr<ImageFile>> files;
  for (int i = 0; i < 4; ++i) files.push_back(*pool->Acquire(kSize));
  for (auto& file : files) pool->Recycle(std::move(file));
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_EQ(pool->counts().dropped, 2u);
  EXPECT_EQ(pool->counts().busy_bytes, 0u);
}

TEST_F(ImagePoolTest, CleansUpAfterACrashButNotOthersFiles) {
  {
    const auto pool = Open();
    auto lost = *pool->Acquire(kSize), forgotten = *pool->Acquire(kSize);
    ASSERT_TRUE(forgotten->MoveTo(directory_ / "v1.safetensors").ok());
    pool->Forget(std::move(forgotten));
    EXPECT_EQ(pool->counts().busy_bytes, kSize);
  }
  EXPECT_EQ(Files().size(), 2u) << "files that are out are not the pool's to remove";
  const auto pool = Open();
  EXPECT_THAT(Files(), testing::ElementsAre("v1.safetensors"));
}

TEST_F(ImagePoolTest, OneProcessOwnsTheDirectory) {
  const auto pool = Open();
  EXPECT_EQ(ReasonOf(ImagePool::Open({.directory = directory_.path()}).status()), "POOL_IN_USE");
}

TEST_F(ImagePoolTest, RefusesBeyondItsLimit) {
  const auto pool =
      *ImagePool::Open({.directory = directory_.path(), .total_bytes_max = 2 * kSize});
  auto first = *pool->Acquire(kSize), second = *pool->Acquire(kSize);
  EXPECT_EQ(ReasonOf(pool->Acquire(1).status()), "POOL_FULL");
  pool->Recycle(std::move(first));
  EXPECT_TRUE(pool->Acquire(kSize).ok());
}

TEST_F(ImagePoolTest, AFullDiskIsAnErrorAndCostsNothing) {
  const auto pool =
      *ImagePool::Open({.directory = directory_.path(), .total_bytes_max = kImageBytesMax});
  pool->Recycle(*pool->Acquire(kSize));
  const auto refused = pool->Acquire(kImageBytesMax / 2);
  EXPECT_EQ(ReasonOf(refused.status()), "DISK_FULL") << refused.status();
  EXPECT_EQ(pool->counts().busy_bytes, 0u);
  EXPECT_TRUE(Files().empty()) << "idle files made room, in vain";
}

}  // namespace
}  // namespace lorry::transfer
