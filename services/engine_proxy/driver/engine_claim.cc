#include "services/engine_proxy/driver/engine_claim.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

// The directory may be removed while it is made; nobody does that again and again.
constexpr int kTries = 20;
constexpr std::chrono::milliseconds kTurn{5'000};
constexpr std::chrono::milliseconds kLook{5};

// A lock on the directory itself while its files are looked at: who looks whether a file is locked
// has it locked for a moment, and its owner-to-be would be refused. It waits, as nobody is longer at
// it than a few system calls take; but who has it may have been stopped, and no proxy of the host
// would start any more.
class Turn {
 public:
  explicit Turn(const std::string& directory)
      : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) {
    const auto until = std::chrono::steady_clock::now() + kTurn;
    while (fd_ >= 0 && !Take() && error_ == 0 && std::chrono::steady_clock::now() < until) {
      // tidy: allow sleep: a bounded wait while the process starts; nothing tells of a lock's end
      std::this_thread::sleep_for(kLook);
    }
  }
  ~Turn() {
    if (fd_ >= 0) ::close(fd_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // Why nobody can lock it, an errno; 0: its file system can.
  int error() const { return error_; }
  bool is_others() const { return fd_ >= 0 && !taken_ && error_ == 0; }
  // False: whoever removed it, when it was empty, had the turn before.
  bool has_come() const {
    struct stat opened = {};
    return taken_ && ::fstat(fd_, &opened) == 0 && opened.st_nlink > 0;
  }

 private:
  bool Take() {
    taken_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!taken_ && errno != EWOULDBLOCK) error_ = errno;
    return taken_;
  }

  const int fd_;
  bool taken_ = false;
  int error_ = 0;
};

absl::Status CannotLock(const std::string& path, int error) {
  return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
               absl::StrCat("locking ", path, ": ", std::strerror(error)));
}

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
  if (lock.error() != 0) return CannotLock(path, lock.error());
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
    if (turn.error() != 0) return CannotLock(directory, turn.error());
    if (turn.is_others()) {
      return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
                   absl::StrCat("another process has had ", directory,
                                " locked for 5 s; `fuser` names it, end it"));
    }
  }
  if (!made.ok()) return made;
  return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
               absl::StrCat(directory, " cannot be opened"));
}

}  // namespace lorry::proxy
