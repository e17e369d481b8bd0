#include "services/engine_proxy/driver/engine_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

// The directory may be removed while it is made; nobody does that again and again.
constexpr int kTries = 20;

// A lock on the directory itself while its files are looked at: who looks whether a file is locked
// has it locked for a moment, and its owner-to-be would be refused. It waits, as nobody is longer at
// it than a few system calls take.
class Turn {
 public:
  explicit Turn(const std::string& directory)
      : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Turn() {
    if (fd_ >= 0) ::close(fd_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // False: whoever removed it, when it was empty, had the turn before.
  bool has_come() const {
    struct stat opened = {};
    return fd_ >= 0 && ::fstat(fd_, &opened) == 0 && opened.st_nlink > 0;
  }

 private:
  const int fd_;
};

// A proxy that was killed leaves its file.
void RemoveFreeClaims(const std::string& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const FileLock free(entry.path().string(), FileLock::File::kIsRemoved);
  }
}

absl::StatusOr<FileLock> ClaimInTurn(const std::string& directory, const std::string& where,
                                     uint16_t port) {
  const std::string path = absl::StrCat(directory, "/engine-", where, "-", port, ".lock");
  FileLock lock(path, FileLock::File::kIsRemoved);
  RemoveFreeClaims(directory);
  if (lock.held()) return lock;
  if (lock.error() != 0) {
    return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
                 absl::StrCat("opening ", path, ": ", std::strerror(lock.error())));
  }
  return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_CLAIMED",
               absl::StrCat("another engine-proxy on this host serves the engine at ", where, ":",
                            port, "; stop it, or point this one at another engine"));
}

}  // namespace

absl::StatusOr<FileLock> ClaimEngine(const std::string& directory, const std::string& host,
                                     uint16_t port) {
  // localhost and 127.0.0.1 are one engine; other spellings of one host are the operator's to
  // avoid.
  const std::string where = host == "localhost" ? "127.0.0.1" : host;
  absl::Status made;
  for (int i = 0; i < kTries; ++i) {
    made = MakePrivateDirectory(directory);
    const Turn turn(directory);
    if (made.ok() && turn.has_come()) return ClaimInTurn(directory, where, port);
  }
  if (!made.ok()) return made;
  return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
               absl::StrCat(directory, " cannot be opened"));
}

}  // namespace lorry::proxy
