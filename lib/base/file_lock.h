// FileLock: a file that at most one process at a time has locked (flock). The lock goes with the
// process, whatever ends it. Belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace lorry {

class FileLock {
 public:
  // What becomes of the file when the lock is let go of. It is removed first, so that whoever locks
  // the path next makes a file of its own.
  enum class File : uint8_t { kStays, kIsRemoved };

  FileLock() = default;  // holds nothing
  // Opens the file at `path` and tries to lock it, without waiting. A file that is not there is
  // made, for this user alone; a symbolic link is not followed.
  explicit FileLock(const std::string& path, File at_end = File::kStays);
  ~FileLock();
  FileLock(FileLock&& other) noexcept { *this = std::move(other); }
  FileLock& operator=(FileLock&& other) noexcept;

  // Why the file could not be opened, or its file system can lock no file, an errno; 0: it is open,
  // and if it is not held somebody else has it.
  int error() const { return error_; }
  // False: there was an error, or somebody else has it locked.
  bool held() const { return held_; }
  // The open file, locked or not.
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  int error_ = 0;
  bool held_ = false;
  std::string removed_;  // the path that is removed at the end; empty: none
};

}  // namespace lorry
