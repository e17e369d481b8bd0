#include "lib/transfer/image_pool.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::transfer {
namespace {

constexpr char kOwnPrefix[] = ".lorry-pool-";
constexpr char kLockName[] = ".lorry-pool-lock";

absl::StatusOr<FileLock> LockDirectory(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  FileLock lock(path);
  if (lock.held()) return lock;
  if (lock.error() != 0) {
    return Error(absl::StatusCode::kInternal, "",
                 absl::StrCat("cannot lock ", path, ": ", std::strerror(lock.error())));
  }
  return Error(absl::StatusCode::kFailedPrecondition, "POOL_IN_USE",
               absl::StrCat("another process uses the image pool in ", directory,
                            "; give each member a directory of its own"));
}

void RemoveLeftovers(const std::string& directory) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, kOwnPrefix) && name != kLockName) unlink(entry.path().c_str());
  }
}

}  // namespace

bool FileServes(uint64_t file_bytes, uint64_t image_bytes) {
  return file_bytes >= image_bytes && file_bytes - image_bytes <= image_bytes / 16;
}

ImagePool::ImagePool(Options options, FileLock lock)
    : options_(std::move(options)), lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<ImagePool>> ImagePool::Open(Options options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return Error(absl::StatusCode::kInternal, "",
                 absl::StrCat("cannot create ", options.directory, ": ", error.message()));
  }
  std::filesystem::permissions(options.directory, std::filesystem::perms::owner_all, error);
  LORRY_ASSIGN_OR_RETURN(FileLock lock, LockDirectory(options.directory));
  RemoveLeftovers(options.directory);
  return std::unique_ptr<ImagePool>(new ImagePool(std::move(options), std::move(lock)));
}

ImagePool::~ImagePool() {
  MutexLock lock(mutex_);
  for (auto& file : idle_) file->Unlink().IgnoreError();
  idle_.clear();
}

std::unique_ptr<ImageFile> ImagePool::TakeIdle(uint64_t bytes) {
  for (auto it = idle_.begin(); it != idle_.end();) {
    if ((*it)->IsWhole()) {
      ++it;
      continue;
    }
    counts_.idle_bytes -= (*it)->size();
    ++counts_.dropped;
    (*it)->Unlink().IgnoreError();
    it = idle_.erase(it);
  }
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    if (FileServes((*it)->size(), bytes) &&
        (best == idle_.end() || (*it)->size() < (*best)->size())) {
      best = it;
    }
  }
  if (best == idle_.end()) return nullptr;
  auto file = std::move(*best);
  idle_.erase(best);
  counts_.idle_bytes -= file->size();
  return file;
}

std::unique_ptr<ImageFile> ImagePool::TakeOldest() {
  if (idle_.empty()) return nullptr;
  auto file = std::move(idle_.front());
  idle_.erase(idle_.begin());
  counts_.idle_bytes -= file->size();
  ++counts_.dropped;
  return file;
}

std::string ImagePool::FreshName() {
  return absl::StrCat(options_.directory, "/", kOwnPrefix, getpid(), "-", next_name_++);
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImagePool::Acquire(uint64_t bytes) {
  std::unique_ptr<ImageFile> file;
  std::string name;
  {
    MutexLock lock(mutex_);
    file = TakeIdle(bytes);
    if (file == nullptr &&
        bytes > options_.total_bytes_max - std::min(options_.total_bytes_max, counts_.busy_bytes)) {
      return Error(
          absl::StatusCode::kResourceExhausted, "POOL_FULL",
          absl::StrCat("images in ", options_.directory, " take ", counts_.busy_bytes, " bytes; ",
                       bytes, " more exceed the limit of ", options_.total_bytes_max));
    }
    counts_.busy_bytes += bytes;
    name = FreshName();
  }
  const auto give_up = [&](absl::Status status) -> absl::Status {
    MutexLock lock(mutex_);
    counts_.busy_bytes -= bytes;
    return status;
  };
  if (file != nullptr) {
    if (absl::Status shrunk = file->Shrink(bytes); !shrunk.ok()) return give_up(shrunk);
    MutexLock lock(mutex_);
    ++counts_.recycled;
    return file;
  }
  for (;;) {
    auto created = ImageFile::Create(name, bytes, {});
    if (created.ok()) {
      MutexLock lock(mutex_);
      ++counts_.created;
      return created;
    }
    // A full tmpfs may be full of our own idle files.
    std::unique_ptr<ImageFile> oldest;
    if (absl::IsResourceExhausted(created.status())) {
      MutexLock lock(mutex_);
      oldest = TakeOldest();
    }
    if (oldest == nullptr) return give_up(created.status());
    oldest->Unlink().IgnoreError();
  }
}

absl::StatusOr<std::unique_ptr<ImageFile>> ImagePool::Link(const std::string& path) {
  std::string name;
  {
    MutexLock lock(mutex_);
    name = FreshName();
  }
  if (link(path.c_str(), name.c_str()) != 0) {
    return Error(errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal, "",
                 absl::StrCat("cannot link ", path, ": ", std::strerror(errno)));
  }
  absl::StatusOr<std::unique_ptr<ImageFile>> file = ImageFile::Open(name);
  if (!file.ok()) {
    unlink(name.c_str());
    return file;
  }
  MutexLock lock(mutex_);
  counts_.busy_bytes += (*file)->size();
  return file;
}

// Renamed first: from then on nobody can find the file, so what is seen of it stays true.
absl::StatusOr<std::unique_ptr<ImageFile>> ImagePool::Adopt(const std::string& path,
                                                            uint64_t bytes) {
  std::string name;
  {
    MutexLock lock(mutex_);
    name = FreshName();
  }
  if (rename(path.c_str(), name.c_str()) != 0) {
    return Error(errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInternal, "",
                 absl::StrCat("cannot take ", path, ": ", std::strerror(errno)));
  }
  absl::StatusOr<std::unique_ptr<ImageFile>> file = ImageFile::Reopen(name);
  const absl::Status usable = !file.ok() ? file.status()
                              : !FileServes((*file)->size(), bytes)
                                  ? absl::FailedPreconditionError(name)
                                  : (*file)->Shrink(bytes);
  if (!usable.ok()) {
    unlink(name.c_str());
    return usable;
  }
  MutexLock lock(mutex_);
  counts_.busy_bytes += bytes;
  ++counts_.recycled;
  return file;
}

void ImagePool::Recycle(std::unique_ptr<ImageFile> file) {
  std::vector<std::unique_ptr<ImageFile>> surplus;
  {
    MutexLock lock(mutex_);
    counts_.busy_bytes -= file->size();
    const bool too_large = file->size() > options_.idle_bytes_max || options_.idle_files_max == 0;
    if (too_large || !file->MoveTo(FreshName()).ok() || !file->IsSole()) {
      ++counts_.dropped;
      surplus.push_back(std::move(file));
    } else {
      counts_.idle_bytes += file->size();
      idle_.push_back(std::move(file));
    }
    while (counts_.idle_bytes > options_.idle_bytes_max || idle_.size() > options_.idle_files_max) {
      surplus.push_back(TakeOldest());
    }
  }
  for (auto& each : surplus) each->Unlink().IgnoreError();
}

void ImagePool::Forget(std::unique_ptr<ImageFile> file) {
  MutexLock lock(mutex_);
  counts_.busy_bytes -= file->size();
}

ImagePool::Counts ImagePool::counts() const {
  MutexLock lock(mutex_);
  return counts_;
}

}  // namespace lorry::transfer
