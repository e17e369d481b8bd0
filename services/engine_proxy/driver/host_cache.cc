#include "services/engine_proxy/driver/host_cache.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

// A fetch takes tens of milliseconds and more; whoever waits for it looks this often.
constexpr std::chrono::milliseconds kLookEvery{5};

absl::Status Failed(std::string_view verb, const std::string& path, int error) {
  return Error(error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
               "DISK_FAILED",
               absl::StrCat("cannot ", std::string(verb), " ", path, ": ", std::strerror(error)));
}

int64_t Nanoseconds(const struct timespec& at) {
  return int64_t{at.tv_sec} * 1'000'000'000 + at.tv_nsec;
}

// One file cannot have a name on two file systems, nor in two mounts of one.
absl::Status CheckSameMount(const std::string& claims, const transfer::ImagePool& pool) {
  const std::string from = pool.directory() + "/.lorry-pool-lock";
  const std::string to = absl::StrCat(claims, "/.mount-", ::getpid());
  ::unlink(to.c_str());
  if (::link(from.c_str(), to.c_str()) != 0) {
    if (errno != EXDEV) return Failed("link into", claims, errno);
    return Error(absl::StatusCode::kInvalidArgument, "",
                 absl::StrCat("--host-cache: ", claims, " is not on the file system of ",
                              pool.directory(), "; images cannot have names in both"));
  }
  ::unlink(to.c_str());
  return absl::OkStatus();
}

}  // namespace

void HostCache::Claim::TellProgress() const { (void)::futimens(lock_.fd(), nullptr); }

HostCache::HostCache(std::string directory, std::string suffix, transfer::ImagePool& pool,
                     HostCacheLimits limits)
    : directory_(std::move(directory)),
      images_(directory_ + "/images"),
      claims_(directory_ + "/claims"),
      suffix_(std::move(suffix)),
      pool_(pool),
      limits_(limits) {}

absl::StatusOr<std::unique_ptr<HostCache>> HostCache::Open(const std::string& directory,
                                                           const ImageReaders& readers,
                                                           transfer::ImagePool& pool,
                                                           HostCacheLimits limits) {
  const std::string group = readers.group.has_value() ? absl::StrCat("-", *readers.group) : "";
  const std::string suffix = absl::StrFormat("-%o%s", readers.files, group);
  std::unique_ptr<HostCache> self(new HostCache(directory, suffix, pool, limits));
  LORRY_RETURN_IF_ERROR(self->MakeDirectories());
  LORRY_RETURN_IF_ERROR(CheckSameMount(self->claims_, pool));
  self->RemoveFreeClaims();
  self->Trim();
  return self;
}

absl::Status HostCache::MakeDirectories() const {
  for (const std::string& path : {directory_, images_, claims_}) {
    const absl::Status made = MakePrivateDirectory(path);
    if (ReasonOf(made) == "DIRECTORY_UNSAFE") {
      return Error(made.code(), "DIRECTORY_UNSAFE",
                   absl::StrCat("--host-cache: ", std::string(made.message())));
    }
    LORRY_RETURN_IF_ERROR(made);
  }
  return absl::OkStatus();
}

absl::StatusOr<HostCache::Found> HostCache::Find(const Wanted& wanted,
                                                 const std::function<bool()>& cancelled) {
  const SteadyClock clock;
  FetchWatch watch(clock.Now());
  for (;;) {
    if (cancelled()) return absl::CancelledError("no longer wanted");
    if (auto image = TakeProven(wanted)) return Found{.image = std::move(image), .claim = nullptr};
    int64_t mark = 0;
    LORRY_ASSIGN_OR_RETURN(auto claim, TryClaim(claims_ + "/" + NameOf(wanted.digest), &mark));
    if (claim != nullptr) {
      // Whoever had the claim until now may have shared the image since the look above.
      return Found{.image = TakeProven(wanted), .claim = std::move(claim)};
    }
    if (!watch.IsWorthIt(clock.Now(), mark)) {
      spdlog::warn("fetching {} too: the proxy of this host that fetches it makes no progress",
                   wanted.digest.value);
      return Found{};
    }
    // tidy: allow sleep: a bounded poll, as a wait for a flock cannot have a deadline
    std::this_thread::sleep_for(kLookEvery);
  }
}

// Linked before it is read: what others remove meanwhile stays whole under this name.
std::unique_ptr<transfer::ImageFile> HostCache::TakeProven(const Wanted& wanted) {
  const std::string path = images_ + "/" + NameOf(wanted.digest);
  auto image = pool_.Link(path);
  if (!image.ok()) return nullptr;
  if ((*image)->size() == wanted.bytes &&
      std::ranges::equal(transfer::LeavesOf((*image)->bytes()), wanted.leaves))
    return *std::move(image);
  spdlog::error("{} is not what its name says: removed", path);
  ::unlink(path.c_str());
  pool_.Recycle(*std::move(image));
  return nullptr;
}

absl::StatusOr<std::unique_ptr<HostCache::Claim>> HostCache::TryClaim(const std::string& path,
                                                                      int64_t* mark) {
  FileLock lock(path, FileLock::File::kIsRemoved);
  if (lock.error() != 0) return Failed("lock", path, lock.error());
  if (lock.held()) return std::unique_ptr<Claim>(new Claim(std::move(lock)));
  struct stat info = {};
  if (::fstat(lock.fd(), &info) == 0) *mark = Nanoseconds(info.st_mtim);
  return nullptr;
}

absl::Status HostCache::Share(const Digest& digest, transfer::ImageFile& image) {
  LORRY_RETURN_IF_ERROR(image.Sync());
  const std::string path = images_ + "/" + NameOf(digest);
  if (::link(image.path().c_str(), path.c_str()) == 0 || errno == EEXIST) return absl::OkStatus();
  return Failed("link to", path, errno);
}

std::unique_ptr<transfer::ImageFile> HostCache::TakeUnused(uint64_t bytes) {
  const std::string name = ImageToRewrite(List(), bytes);
  if (name.empty()) return nullptr;
  auto file = pool_.Adopt(images_ + "/" + name, bytes);
  return file.ok() ? *std::move(file) : nullptr;
}

std::vector<CachedImage> HostCache::List() const {
  std::vector<CachedImage> images;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(images_, error)) {
    struct stat info = {};
    if (::lstat(entry.path().c_str(), &info) != 0) continue;
    // The last change of a file that nobody uses was the loss of a name.
    images.push_back({.name = entry.path().filename().string(),
                      .bytes = static_cast<uint64_t>(info.st_size),
                      .used = info.st_nlink > 1,
                      .idle_since = Nanoseconds(info.st_ctim)});
  }
  return images;
}

void HostCache::RemoveBeyond(const HostCacheLimits& limits) {
  for (const std::string& name : ImagesToRemove(List(), limits))
    ::unlink((images_ + "/" + name).c_str());
}

void HostCache::RemoveFreeClaims() {
  std::error_code error;
  int64_t unused = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(claims_, error))
    (void)TryClaim(entry.path().string(), &unused);  // ended at once
}

}  // namespace lorry::proxy
