// Whether a file was written or replaced since one looked.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace lorry::rpc {

// Equal as long as the same file lies there, untouched. The clock of a file system ticks in
// milliseconds: two writes in one tick are told apart by the size, or else not at all.
struct FileStamp {
  int64_t modified_ns = 0;
  int64_t bytes = -1;  // -1: there is none
  uint64_t inode = 0;
  bool exists() const { return bytes >= 0; }
  bool operator==(const FileStamp&) const = default;
};

inline FileStamp StampOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return {};
  return {info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size, info.st_ino};
}

}  // namespace lorry::rpc
