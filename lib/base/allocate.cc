#include "lib/base/allocate.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>

namespace lorry {
namespace {

constexpr uint64_t kStatBlock = 512;  // the unit of st_blocks, whatever the file system's own is

// False only where the file system says so: some say nothing of their size.
bool HasRoom(int fd, uint64_t bytes) {
  struct statvfs disk {};
  struct stat file {};
  if (fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0 || fstat(fd, &file) != 0) return true;
  const uint64_t has = static_cast<uint64_t>(file.st_blocks) * kStatBlock;
  return bytes <= has || bytes - has <= uint64_t{disk.f_bavail} * disk.f_frsize;
}

}  // namespace

int Allocate(int fd, uint64_t bytes) {
  if (!HasRoom(fd, bytes)) return ENOSPC;
  return posix_fallocate(fd, 0, static_cast<off_t>(bytes));
}

}  // namespace lorry
