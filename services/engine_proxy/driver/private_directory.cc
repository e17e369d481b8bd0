#include "services/engine_proxy/driver/private_directory.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthersWrite = S_IWGRP | S_IWOTH;

absl::Status Unsafe(const std::string& path, std::string_view why) {
  return Error(absl::StatusCode::kFailedPrecondition, "DIRECTORY_UNSAFE",
               absl::StrCat(path, " ", std::string(why), "; remove it, or name another directory"));
}

absl::Status Failed(const std::string& path, int error) {
  return Error(absl::StatusCode::kUnavailable, "DISK_FAILED",
               absl::StrCat(path, ": ", std::strerror(error)));
}

}  // namespace

absl::Status MakePrivateDirectory(const std::string& path, const ImageReaders& readers) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty() && !fs::exists(parent, error)) {
    LORRY_RETURN_IF_ERROR(MakePrivateDirectory(parent.string(), readers));
  }
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Failed(path, errno);
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) {
    return errno == EACCES ? Unsafe(path, "cannot be opened by this user")
                           : Unsafe(path, "is a link, or no directory");
  }
  struct stat is = {};
  const int failed = ::fstat(fd, &is);
  ::close(fd);
  if (failed != 0) return Failed(path, errno);
  if (is.st_uid != ::geteuid()) return Unsafe(path, "belongs to another user");
  if ((is.st_mode & kOthersWrite) != 0) return Unsafe(path, "may be written to by other users");
  return OpenTo(readers, path);
}

std::string UnsafeParentOf(const std::string& path) {
  std::error_code error;
  fs::path parent = fs::absolute(path, error).parent_path();
  for (;; parent = parent.parent_path()) {
    struct stat is = {};
    if (::stat(parent.c_str(), &is) != 0) return parent.string();
    const bool trusted = is.st_uid == 0 || is.st_uid == ::geteuid();
    const bool shared = (is.st_mode & kOthersWrite) != 0 && (is.st_mode & S_ISVTX) == 0;
    if (!trusted || shared) return parent.string();
    if (parent == parent.parent_path()) return "";
  }
}

std::string SharedMemoryDirectory() { return absl::StrCat("/dev/shm/lorry-", ::geteuid()); }

std::string ImageRoot(const std::string& given, const std::string& member) {
  if (given.empty()) return SharedMemoryDirectory() + "/" + member;
  struct stat is = {};
  const bool is_anothers = ::stat(given.c_str(), &is) == 0 && is.st_uid != ::geteuid();
  return is_anothers ? given + "/" + member : given;
}

std::string HostCacheRoot(const std::string& given, const std::string& image_dir) {
  if (given == "off" || given.empty()) return "";
  if (given != "auto") return given;
  // No member has that name: they begin with a letter or a digit.
  return image_dir.empty() ? SharedMemoryDirectory() + "/.images" : "";
}

absl::StatusOr<ImageReaders> ParseImageReaders(const std::string& text) {
  if (text == "owner") return ImageReaders{};
  if (text == "all") return ImageReaders{.directories = 0755, .files = 0644, .group = {}};
  ImageReaders readers{.directories = 0750, .files = 0640, .group = {}};
  gid_t number = 0;
  if (absl::SimpleAtoi(text, &number)) {
    readers.group = number;
    return readers;
  }
  std::vector<char> room(1 << 14);
  struct group entry = {};
  struct group* found = nullptr;
  const int failed = ::getgrnam_r(text.c_str(), &entry, room.data(), room.size(), &found);
  if (failed != 0 || found == nullptr) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("--image-readers is \"", text,
                              "\"; write owner, all, or a group by name or number"));
  }
  readers.group = found->gr_gid;
  return readers;
}

absl::Status OpenTo(const ImageReaders& readers, const std::string& path) {
  struct stat is = {};
  if (::stat(path.c_str(), &is) != 0) return Failed(path, errno);
  const mode_t mode = S_ISDIR(is.st_mode) ? readers.directories : readers.files;
  if (readers.group.has_value() && ::chown(path.c_str(), static_cast<uid_t>(-1), *readers.group))
    return Failed(path, errno);
  return ::chmod(path.c_str(), mode) == 0 ? absl::OkStatus() : Failed(path, errno);
}

}  // namespace lorry::proxy
