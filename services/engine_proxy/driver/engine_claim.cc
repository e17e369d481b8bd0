#include "services/engine_proxy/driver/engine_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {
namespace {

// Whether `path` still names the file that `fd` has open: one that ends removes its own.
bool IsStillThere(const std::string& path, int fd) {
  struct stat named = {}, open = {};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineClaim>> EngineClaim::Take(const std::string& directory,
                                                               const std::string& host,
                                                               uint16_t port) {
  LORRY_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  // localhost and 127.0.0.1 are one engine; other spellings of one host are the operator's to
  // avoid.
  const std::string where = host == "localhost" ? "127.0.0.1" : host;
  const std::string path = absl::StrCat(directory, "/engine-", where, "-", port, ".lock");
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
      return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
                   absl::StrCat("opening ", path, ": ", std::strerror(errno)));
    }
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      ::close(fd);
      return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_CLAIMED",
                   absl::StrCat("another engine-proxy on this host serves the engine at ", where,
                                ":", port, "; stop it, or point this one at another engine"));
    }
    if (IsStillThere(path, fd)) return std::unique_ptr<EngineClaim>(new EngineClaim(path, fd));
    ::close(fd);  // of one that ended meanwhile
  }
}

EngineClaim::~EngineClaim() {
  ::unlink(path_.c_str());
  ::close(fd_);
}

}  // namespace lorry::proxy
