// A directory of the test's own, removed with it.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

namespace lorry::blob {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "lorry_blob_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& file) const { return path_ + "/" + file; }

 private:
  std::string path_;
};

}  // namespace lorry::blob
