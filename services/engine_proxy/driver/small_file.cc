#include "services/engine_proxy/driver/small_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace lorry::proxy {

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  constexpr uintmax_t kBytesMax = uintmax_t{1} << 20;
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) return absl::NotFoundError(absl::StrCat(path, ": ", error.message()));
  if (bytes > kBytesMax)
    return absl::NotFoundError(absl::StrCat(path, " has ", bytes, " bytes, more than 1 MiB"));
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace lorry::proxy
