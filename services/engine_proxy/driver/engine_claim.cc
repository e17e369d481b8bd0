#include "services/engine_proxy/driver/engine_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::proxy {

absl::StatusOr<std::unique_ptr<EngineClaim>> EngineClaim::Take(const std::string& host,
                                                               uint16_t port) {
  // localhost and 127.0.0.1 are one engine; other spellings of one host are the operator's to
  // avoid.
  const std::string where = host == "localhost" ? "127.0.0.1" : host;
  const std::string path = absl::StrCat(std::filesystem::temp_directory_path().string(),
                                        "/lorry-engine-", where, "-", port, ".lock");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) {
    return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
                 absl::StrCat("opening ", path, ": ", std::strerror(errno)));
  }
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_CLAIMED",
                 absl::StrCat("another engine-proxy on this host serves the engine at ", where, ":",
                              port, "; stop it, or point this one at another engine"));
  }
  return std::unique_ptr<EngineClaim>(new EngineClaim(fd));
}

EngineClaim::~EngineClaim() { ::close(fd_); }

}  // namespace lorry::proxy
