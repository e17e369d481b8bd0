#include "lib/transfer/image_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/allocate.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/file_state.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {
namespace {

absl::Status FromErrno(int error, const std::string& verb, const std::string& path) {
  const std::string what = absl::StrCat("cannot ", verb, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", what);
    case ENOMEM:
      return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", what);
    case EEXIST:
      return Error(absl::StatusCode::kAlreadyExists, "", what);
    case ENOENT:
      return Error(absl::StatusCode::kNotFound, "", what);
    default:
      return Error(absl::StatusCode::kInternal, "", what);
  }
}

}  // namespace

ImageFile::ImageFile(std::string path, int fd, std::byte* data, uint64_t size, bool writable)
    : path_(std::move(path)),
      fd_(fd),
      data_(data),
      size_(size),
      mapped_(size),
      writable_(writable) {}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Create(const std::string& path,
                                                             uint64_t bytes,
                                                             CreateOptions options) {
  if (bytes > kImageBytesMax) {
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat(path, ": an image of ", bytes, " bytes"));
  }
  Descriptor fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0) return FromErrno(errno, "create", path);
  const auto fail = [&](int error, const char* verb) {
    unlink(path.c_str());
    return FromErrno(error, verb, path);
  };
  void* data = nullptr;
  if (bytes > 0) {
    if (const int error = Allocate(fd.get(), bytes); error != 0) {
      return fail(error, "allocate");
    }
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | (options.prefault ? MAP_POPULATE : 0), fd.get(), 0);
    if (data == MAP_FAILED) return fail(errno, "map");
  }
  return std::unique_ptr<ImageFile>(
      new ImageFile(path, fd.Take(), static_cast<std::byte*>(data), bytes, true));
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Open(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return FromErrno(errno, "open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return FromErrno(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return Error(absl::StatusCode::kFailedPrecondition, "",
                 absl::StrCat(path, " is not a regular file"));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) return FromErrno(errno, "map", path);
  }
  return std::unique_ptr<ImageFile>(
      new ImageFile(path, fd.Take(), static_cast<std::byte*>(data), size, false));
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImageFile::Reopen(const std::string& path) {
  Descriptor fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (fd.get() < 0) return FromErrno(errno, "open", path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return FromErrno(errno, "stat", path);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (!S_ISREG(info.st_mode) || size == 0 || size > kImageBytesMax) {
    return Error(absl::StatusCode::kFailedPrecondition, "", absl::StrCat(path, " is no image"));
  }
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (data == MAP_FAILED) return FromErrno(errno, "map", path);
  std::unique_ptr<ImageFile> file(
      new ImageFile(path, fd.Take(), static_cast<std::byte*>(data), size, true));
  if (file->IsSole()) return file;
  return Error(absl::StatusCode::kFailedPrecondition, "",
               absl::StrCat(path, " has another name, or somebody has it open"));
}

// A write lease is refused while anybody else has the file open or mapped. It is let go of at once:
// it answers a question. Whoever opens the file just then has the holder sent a signal, which by
// default is SIGIO and would end the process; SIGURG is ignored by default.
bool ImageFile::IsSole() const {
  struct stat info {};
  if (!writable_ || !IsWhole() || fstat(fd_, &info) != 0 || info.st_nlink != 1) return false;
  if (fcntl(fd_, F_SETSIG, SIGURG) != 0 || fcntl(fd_, F_SETLEASE, F_WRLCK) != 0) return false;
  return fcntl(fd_, F_SETLEASE, F_UNLCK) == 0;
}

bool ImageFile::IsWhole() const {
  struct stat info {};
  if (fstat(fd_, &info) != 0 || info.st_nlink == 0) return false;
  return static_cast<uint64_t>(info.st_size) >= size_;
}

ImageFile::~ImageFile() {
  if (data_ != nullptr) munmap(data_, mapped_);
  close(fd_);
}

std::span<std::byte> ImageFile::writable() {
  LORRY_CHECK(writable_);
  return {data_, size_};
}

absl::Status ImageFile::MoveTo(const std::string& path) {
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    return FromErrno(errno, absl::StrCat("move ", path_, " to"), path);
  }
  // Where both names were of this file already, rename() does nothing and says that it has done it.
  struct stat info {};
  if (path != path_ && fstat(fd_, &info) == 0 && info.st_nlink > 1) unlink(path_.c_str());
  path_ = path;
  return absl::OkStatus();
}

absl::Status ImageFile::Shrink(uint64_t bytes) {
  LORRY_CHECK(writable_ && bytes <= size_);
  if (bytes == size_) return absl::OkStatus();
  if (ftruncate(fd_, static_cast<off_t>(bytes)) != 0) return FromErrno(errno, "shrink", path_);
  size_ = bytes;
  return absl::OkStatus();
}

absl::Status ImageFile::Sync() {
  // No msync is needed: the file and its mapping have the same pages, and fsync writes them.
  if (fsync(fd_) != 0) return FromErrno(errno, "sync", path_);
  return absl::OkStatus();
}

absl::Status ImageFile::Unlink() {
  if (unlink(path_.c_str()) != 0) return FromErrno(errno, "remove", path_);
  return absl::OkStatus();
}

}  // namespace lorry::transfer
