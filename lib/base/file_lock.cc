#include "lib/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace lorry {
namespace {

// Whether `path` names the file that is open. It does not where its last holder removed it after it
// was opened here, and before it was locked.
bool IsAt(const std::string& path, int fd) {
  struct stat named = {}, opened = {};
  return stat(path.c_str(), &named) == 0 && fstat(fd, &opened) == 0 &&
         named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

}  // namespace

FileLock::FileLock(const std::string& path, File at_end) {
  do {
    if (fd_ >= 0) close(fd_);
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    error_ = fd_ < 0 ? errno : 0;
    held_ = fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (fd_ >= 0 && !held_ && errno != EWOULDBLOCK) error_ = errno;
  } while (held_ && !IsAt(path, fd_));
  if (held_ && at_end == File::kIsRemoved) removed_ = path;
}

FileLock::~FileLock() {
  if (!removed_.empty()) unlink(removed_.c_str());
  if (fd_ >= 0) close(fd_);
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(error_, other.error_);
  std::swap(held_, other.held_);
  std::swap(removed_, other.removed_);
  return *this;
}

}  // namespace lorry
