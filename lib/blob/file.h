// Files, directories and mappings for the local store: POSIX calls as absl::Status. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry::blob {

// errno as a status: ENOSPC and EDQUOT are RESOURCE_EXHAUSTED DISK_FULL, EIO is UNAVAILABLE
// DISK_FAILED.
absl::Status ErrnoStatus(int error, std::string_view doing);

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }
  static absl::StatusOr<Fd> Open(const std::string& path, int flags);

 private:
  int fd_;
};

// A whole file in memory, shared with the page cache.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile() { Unmap(); }
  // DATA_LOSS for an empty file. A writable mapping needs its space allocated before, or a full
  // disk is a SIGBUS.
  static absl::StatusOr<MappedFile> Map(const Fd& fd, bool writable);
  void Unmap();
  // Reads a part, which begins at a page, into memory. DATA_LOSS DISK_FAILED when the disk cannot
  // give some of it, which without this call would be a SIGBUS for whoever touches those bytes first.
  absl::Status Load(uint64_t offset, uint64_t length) const;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

absl::StatusOr<uint64_t> SizeOf(const Fd& fd);
// A new file of so many zeroes, whose space is durably its own. An error leaves nothing behind.
absl::StatusOr<Fd> CreateAllocated(const std::string& path, uint64_t bytes);
// DATA_LOSS DISK_FAILED, which must not be tried again. Content, length and what was written
// through mappings.
absl::Status SyncFile(const Fd& fd);
absl::Status SyncDirectory(const std::string& path);
absl::Status MakeDirectory(const std::string& path);  // existing is fine
// ALREADY_EXISTS when `to` is there. Nobody else may make `to` meanwhile.
absl::Status RenameNew(const std::string& from, const std::string& to);

}  // namespace lorry::blob
