// A directory of one's own, removed with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "lib/base/check.h"

namespace lorry {

class TempDir {
 public:
  explicit TempDir(const std::string& parent = std::filesystem::temp_directory_path().string())
      : path_(parent + "/lorry_XXXXXX") {
    LORRY_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  // A parent whose files are memory, where there is one.
  static std::string Memory() {
    const std::string memory = "/dev/shm";
    return std::filesystem::is_directory(memory) ? memory
                                                 : std::filesystem::temp_directory_path().string();
  }

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view file) const { return path_ + "/" + std::string(file); }

 private:
  std::string path_;
};

}  // namespace lorry
