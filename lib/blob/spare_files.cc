#include "lib/blob/spare_files.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::blob {
namespace {

// No blob's key has capitals.
constexpr const char* kPrefix = "SPARE";
constexpr uint64_t kReadBytes = uint64_t{1} << 20;
constexpr std::chrono::seconds kLastStep{1};

}  // namespace

void SpareFiles::Prepare(uint64_t bytes) {
  if (bytes < kBytesMin || bytes > options_.bytes_max) return;
  MutexLock lock(mutex_);
  if (stopping_) return;
  wanted_ = bytes;
  if (!maker_.joinable()) maker_ = std::thread([this] { Run(); });
  changed_.notify_all();
}

void SpareFiles::Run() {
  // Whatever else runs comes first: a file that is taken before all of it is warm is no worse than
  // another one.
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19);
  while (const uint64_t bytes = Next()) Make(bytes);
}

uint64_t SpareFiles::Next() {
  MutexLock lock(mutex_);
  while (wanted_ == 0 && !stopping_) changed_.wait(mutex_);
  const auto until = std::chrono::steady_clock::now() + options_.delay;
  while (!stopping_ && changed_.wait_until(mutex_, until) != std::cv_status::timeout) {
  }
  return stopping_ ? 0 : std::exchange(wanted_, 0);
}

void SpareFiles::Make(uint64_t bytes) {
  if (!options_.has_room(bytes) || !MayAdd(bytes)) return;
  const std::string path = options_.directory + kPrefix;
  absl::StatusOr<Fd> fd = CreateAllocated(path, bytes);
  // Without one the next blob has its file made as ever.
  if (fd.ok() && Add(bytes, path)) {
    std::vector<std::byte> unused(kReadBytes);
    for (uint64_t at = 0; at < bytes && IsThere(bytes); at += kReadBytes)
      (void)!pread(fd->get(), unused.data(), unused.size(), static_cast<off_t>(at));
  }
  if (fd.ok()) *fd = Fd();  // before anybody is told that its space is free
  MutexLock lock(mutex_);
  making_ = false;
  changed_.notify_all();
}

bool SpareFiles::MayAdd(uint64_t bytes) {
  MutexLock lock(mutex_);
  if (std::ranges::find(spares_, bytes, &Spare::bytes) != spares_.end()) return false;
  uint64_t total = bytes;
  for (const Spare& spare : spares_) total += spare.bytes;
  for (; total > options_.bytes_max; spares_.pop_front()) {
    total -= spares_.front().bytes;
    unlink(spares_.front().path.c_str());
  }
  making_ = true;
  dropped_ = false;
  return true;
}

bool SpareFiles::Add(uint64_t bytes, const std::string& path) {
  MutexLock lock(mutex_);
  const Spare spare{bytes, absl::StrCat(path, "-", made_++)};
  if (dropped_ || !RenameNew(path, spare.path).ok()) {
    unlink(path.c_str());
    return false;
  }
  spares_.push_back(spare);
  return true;
}

bool SpareFiles::Take(uint64_t bytes, const std::string& path) {
  MutexLock lock(mutex_);
  const auto spare = std::ranges::find(spares_, bytes, &Spare::bytes);
  if (spare == spares_.end()) return false;
  const bool taken = RenameNew(spare->path, path).ok();
  if (!taken) unlink(spare->path.c_str());
  spares_.erase(spare);
  return taken;
}

bool SpareFiles::Drop() {
  MutexLock lock(mutex_);
  const bool had = making_ || !spares_.empty();
  for (const Spare& spare : spares_) unlink(spare.path.c_str());
  spares_.clear();
  // The space of a file is free once nobody has it open; a step of the maker's is short.
  dropped_ = true;
  const auto until = std::chrono::steady_clock::now() + kLastStep;
  while (making_ && changed_.wait_until(mutex_, until) != std::cv_status::timeout) {
  }
  return had;
}

void SpareFiles::Stop() {
  std::thread maker;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    maker = std::move(maker_);
  }
  changed_.notify_all();
  if (maker.joinable()) maker.join();
  Drop();
}

bool SpareFiles::IsThere(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return !stopping_ && std::ranges::find(spares_, bytes, &Spare::bytes) != spares_.end();
}

absl::Status SweepSpareFiles(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (absl::StartsWith(entry.path().filename().string(), kPrefix)) unlink(entry.path().c_str());
  }
  return error ? ErrnoStatus(error.value(), absl::StrCat("listing ", directory)) : absl::OkStatus();
}

}  // namespace lorry::blob
