#include "lib/base/file_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lorry {
namespace {

// One read(2): large enough that its cost does not count.
constexpr size_t kReadBytes = 8u << 20;

int64_t Nanoseconds(const struct timespec& time) {
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

std::optional<FileState> FileStateOf(int fd) {
  struct stat is = {};
  if (::fstat(fd, &is) != 0 || !S_ISREG(is.st_mode)) return std::nullopt;
  return FileState{is.st_dev, is.st_ino, is.st_size, Nanoseconds(is.st_mtim),
                   Nanoseconds(is.st_ctim)};
}

ssize_t ReadFully(int fd, std::span<std::byte> to) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t n = ::read(fd, to.data() + done, std::min(to.size() - done, kReadBytes));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return n;
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(done);
}

}  // namespace lorry
