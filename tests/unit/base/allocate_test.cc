#include "lib/base/allocate.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>

namespace lorry {
namespace {

class AllocateTest : public ::testing::Test {
 protected:
  AllocateTest() : file_(std::tmpfile(), &std::fclose) {}
  int fd() const { return ::fileno(file_.get()); }
  struct stat Stat() const {
    struct stat now {};
    EXPECT_EQ(::fstat(fd(), &now), 0);
    return now;
  }
  struct statvfs Disk() const {
    struct statvfs disk {};
    EXPECT_EQ(::fstatvfs(fd(), &disk), 0);
    return disk;
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

TEST_F(AllocateTest, GivesAFileItsBlocks) {
  ASSERT_EQ(Allocate(fd(), 1 << 20), 0);
  EXPECT_EQ(Stat().st_size, 1 << 20);
  EXPECT_GE(Stat().st_blocks * 512, 1 << 20);
}

TEST_F(AllocateTest, TakesNothingWhereThereIsTooLittle) {
  const struct statvfs disk = Disk();
  EXPECT_EQ(Allocate(fd(), (disk.f_bavail + 1) * disk.f_frsize + (uint64_t{1} << 30)), ENOSPC);
  EXPECT_EQ(Stat().st_blocks, 0) << "others on the disk could not have written meanwhile";
  EXPECT_EQ(Stat().st_size, 0);
}

}  // namespace
}  // namespace lorry
