#include "lib/transfer/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lib/base/error.h"
#include "lib/transfer/arena.h"
#include "tests/testing/temp_dir.h"

namespace lorry::transfer {
namespace {

class ImageFileTest : public testing::Test {
 public:
  std::string Path(const std::string& name) const { return directory_ / name; }

 private:
  TempDir directory_;
};

TEST_F(ImageFileTest, WhatIsWrittenIsInTheFile) {
  auto file = *ImageFile::Create(Path("a"), 10'000, {});
  std::memset(file->writable().data(), 'x', 10'000);
  ASSERT_TRUE(file->Sync().ok());
  const auto reader = *ImageFile::Open(Path("a"));
  EXPECT_EQ(reader->size(), 10'000u);
  EXPECT_EQ(reader->bytes()[9'999], std::byte{'x'});
}

TEST_F(ImageFileTest, ANameIsTakenOnce) {
  auto file = *ImageFile::Create(Path("a"), 10, {});
  EXPECT_EQ(ImageFile::Create(Path("a"), 10, {}).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ImageFile::Open(Path("b")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ImageFile::Open(Path("")).status().code(), absl::StatusCode::kFailedPrecondition)
      << "a directory";
}

TEST_F(ImageFileTest, AFullDiskIsAnErrorAndLeavesNothing) {
  struct statvfs info {};
  ASSERT_EQ(statvfs(testing::TempDir().c_str(), &info), 0);
  const uint64_t more = info.f_blocks * info.f_frsize + (uint64_t{1} << 30);
  const auto refused = ImageFile::Create(Path("a"), more, {});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
  EXPECT_EQ(ReasonOf(refused.status()), "DISK_FULL");
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
}

TEST_F(ImageFileTest, EmptyImages) {
  auto file = *ImageFile::Create(Path("a"), 0, {});
  EXPECT_TRUE(file->bytes().empty());
  EXPECT_TRUE((*ImageFile::Open(Path("a")))->bytes().empty());
}

TEST_F(ImageFileTest, MovesShrinksAndGoes) {
  auto file = *ImageFile::Create(Path("a"), 10'000, {});
  std::ofstream(Path("b")) << "old";
  ASSERT_TRUE(file->MoveTo(Path("b")).ok());
  EXPECT_FALSE(std::filesystem::exists(Path("a")));
  ASSERT_TRUE(file->Shrink(5'001).ok());
  EXPECT_EQ(std::filesystem::file_size(Path("b")), 5'001u);
  EXPECT_EQ(file->writable().size(), 5'001u);
  ASSERT_TRUE(file->Unlink().ok());
  EXPECT_FALSE(std::filesystem::exists(Path("b")));
  file->writable()[5'000] = std::byte{1};  // still mapped
}

TEST(Arena, HasWholeHugePages) {
  constexpr uint64_t kHugePage = uint64_t{2} << 20;
  const auto arena = *Arena::Create(kHugePage + 1);
  EXPECT_EQ(arena->capacity(), 2 * kHugePage);
  EXPECT_EQ(arena->bytes().size(), 2 * kHugePage);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena->bytes().data()) % kHugePage, 0u);
}

}  // namespace
}  // namespace lorry::transfer
