// Files that somebody else may be writing. They are read and never mapped: whoever touches bytes
// that a mapped file has lost gets a SIGBUS. What was read is of one moment where the state is the
// same before and after. Any thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace lorry {

// Owns a descriptor; negative: none.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  int Take() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Which file it is, and what it was when it was last written to. The clock of a file system ticks in
// milliseconds: a write in the same tick as the one before is seen by the size alone.
struct FileState {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const FileState&) const = default;
};

// Nothing: it is no regular file.
std::optional<FileState> FileStateOf(int fd);

// Reads from where the descriptor stands until `to` is full. Returns how much it read, less where the
// file ends before, or -1 with errno.
ssize_t ReadFully(int fd, std::span<std::byte> to);

}  // namespace lorry
