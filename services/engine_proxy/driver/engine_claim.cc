#include "services/engine_proxy/driver/engine_claim.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "services/engine_proxy/driver/private_directory.h"

namespace lorry::proxy {

absl::StatusOr<FileLock> ClaimEngine(const std::string& directory, const std::string& host,
                                     uint16_t port) {
  LORRY_RETURN_IF_ERROR(MakePrivateDirectory(directory));
  // localhost and 127.0.0.1 are one engine; other spellings of one host are the operator's to
  // avoid.
  const std::string where = host == "localhost" ? "127.0.0.1" : host;
  const std::string path = absl::StrCat(directory, "/engine-", where, "-", port, ".lock");
  FileLock lock(path, FileLock::File::kIsRemoved);
  if (lock.held()) return lock;
  if (lock.error() != 0) {
    return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
                 absl::StrCat("opening ", path, ": ", std::strerror(lock.error())));
  }
  return Error(absl::StatusCode::kFailedPrecondition, "ENGINE_CLAIMED",
               absl::StrCat("another engine-proxy on this host serves the engine at ", where, ":",
                            port, "; stop it, or point this one at another engine"));
}

}  // namespace lorry::proxy
