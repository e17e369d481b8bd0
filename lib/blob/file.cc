#include "lib/blob/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/allocate.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

// Known to kernels from 5.14 on, and not to older headers.
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace lorry::blob {

namespace {

// After a failed fsync the kernel may call the pages clean that it could not write: a second fsync
// would succeed and mean nothing.
absl::Status Sync(const Fd& fd, const std::string& what) {
  if (fsync(fd.get()) == 0) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, "DISK_FAILED",
               absl::StrCat("syncing ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status ErrnoStatus(int error, std::string_view doing) {
  const std::string what = absl::StrCat(ToAbsl(doing), ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                   absl::StrCat(what, "; make room and try again"));
    case ENOENT:
    case ENOTDIR:
      return Error(absl::StatusCode::kNotFound, "", what);
    case EEXIST:
      return Error(absl::StatusCode::kAlreadyExists, "", what);
    case EACCES:
    case EPERM:
    case EROFS:
      return Error(absl::StatusCode::kPermissionDenied, "", what);
    default:
      return Error(absl::StatusCode::kUnavailable, "DISK_FAILED", what);
  }
}

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<Fd> Fd::Open(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  return Fd(fd);
}

absl::StatusOr<MappedFile> MappedFile::Map(const Fd& fd, bool writable) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t bytes, SizeOf(fd));
  if (bytes == 0) return Error(absl::StatusCode::kDataLoss, "", "the blob's file is empty");
  void* const at =
      mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping a blob");
  MappedFile file;
  file.bytes_ = {static_cast<std::byte*>(at), bytes};
  return file;
}

void MappedFile::Unmap() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

absl::Status MappedFile::Load(uint64_t offset, uint64_t length) const {
  LORRY_CHECK(offset % static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) == 0);
  const std::span<std::byte> part = bytes_.subspan(offset, length);
  if (madvise(part.data(), part.size(), MADV_POPULATE_READ) == 0) return absl::OkStatus();
  // Kernels before 5.14 do not know it: there, pages are read when they are touched.
  if (errno == EINVAL || errno == ENOSYS) return absl::OkStatus();
  if (errno != EFAULT && errno != EHWPOISON && errno != EIO) {
    return ErrnoStatus(errno, "reading a blob");
  }
  return Error(absl::StatusCode::kDataLoss, "DISK_FAILED",
               "the disk does not give back all bytes of a blob");
}

absl::StatusOr<uint64_t> SizeOf(const Fd& fd) {
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "asking a file's size");
  return static_cast<uint64_t>(info.st_size);
}

absl::StatusOr<Fd> CreateAllocated(const std::string& path, uint64_t bytes) {
  LORRY_ASSIGN_OR_RETURN(Fd fd, Fd::Open(path, O_RDWR | O_CREAT | O_EXCL));
  const int error = Allocate(fd.get(), bytes);
  absl::Status made = error == 0 ? SyncFile(fd)
                                 : ErrnoStatus(error == EFBIG ? ENOSPC : error,
                                               absl::StrCat("allocating ", bytes, " bytes"));
  if (made.ok()) return fd;
  unlink(path.c_str());
  return made;
}

absl::Status SyncFile(const Fd& fd) { return Sync(fd, "a blob"); }

absl::Status SyncDirectory(const std::string& path) {
  LORRY_ASSIGN_OR_RETURN(const Fd fd, Fd::Open(path, O_RDONLY | O_DIRECTORY));
  return Sync(fd, path);
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("making ", path));
}

absl::Status RenameNew(const std::string& from, const std::string& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  int error = errno;
  // NFS, older ZFS and others do not know the flag. The store's lock and its holds keep everybody
  // else from making `to` between these two calls.
  if (error == EINVAL || error == ENOSYS) {
    if (access(to.c_str(), F_OK) == 0) {
      error = EEXIST;
    } else {
      if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
      error = errno;
    }
  }
  return ErrnoStatus(error, absl::StrCat("renaming ", from));
}

}  // namespace lorry::blob
