#include "lib/blob/memory_store.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/mutex.h"

namespace lorry::blob {
namespace {

struct Blob {
  std::vector<std::byte> bytes;
  BlobState state = BlobState::kStaging;
  bool held = false;
};

// Shared with stagings, which may outlive the store.
struct Shelf {
  Mutex mutex;
  std::map<std::string, std::shared_ptr<Blob>, std::less<>> blobs LORRY_GUARDED_BY(mutex);
};

class MemoryMapping final : public Mapping {
 public:
  explicit MemoryMapping(std::shared_ptr<const Blob> blob) : blob_(std::move(blob)) {}
  std::span<const std::byte> bytes() const override { return blob_->bytes; }
  absl::Status Load(uint64_t, uint64_t) const override { return absl::OkStatus(); }

 private:
  const std::shared_ptr<const Blob> blob_;
};

class MemoryStaging final : public Staging {
 public:
  MemoryStaging(std::shared_ptr<Shelf> shelf, std::shared_ptr<Blob> blob)
      : shelf_(std::move(shelf)), blob_(std::move(blob)) {}
  ~MemoryStaging() override {
    MutexLock lock(shelf_->mutex);
    blob_->held = false;
  }
  std::span<std::byte> bytes() override { return blob_->bytes; }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::Status Seal() override {
    MutexLock lock(shelf_->mutex);
    if (sealed_) return Error(absl::StatusCode::kFailedPrecondition, "", "sealed already");
    blob_->state = BlobState::kSealed;
    sealed_ = true;
    return absl::OkStatus();
  }

 private:
  const std::shared_ptr<Shelf> shelf_;
  const std::shared_ptr<Blob> blob_;
  bool sealed_ = false;
};

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  absl::StatusOr<std::unique_ptr<Staging>> Create(std::string_view key, uint64_t bytes) override {
    LORRY_RETURN_IF_ERROR(CheckKey(key));
    if (bytes == 0) {
      return Error(absl::StatusCode::kInvalidArgument, "", "a blob has at least a byte");
    }
    MutexLock lock(shelf_->mutex);
    if (shelf_->blobs.contains(key)) return BlobExists(key);
    uint64_t used = 0;
    for (const auto& [name, blob] : shelf_->blobs) used += blob->bytes.size();
    if (bytes > bytes_max_ - std::min(used, bytes_max_)) {
      return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                   absl::StrCat("a blob of ", bytes, " bytes does not fit"));
    }
    auto blob = std::make_shared<Blob>();
    blob->bytes.resize(bytes);
    blob->held = true;
    shelf_->blobs.emplace(key, blob);
    return std::make_unique<MemoryStaging>(shelf_, std::move(blob));
  }
  absl::StatusOr<std::unique_ptr<Staging>> Resume(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(CheckKey(key));
    MutexLock lock(shelf_->mutex);
    const auto it = shelf_->blobs.find(key);
    if (it == shelf_->blobs.end() || it->second->state == BlobState::kSealed) {
      return BlobMissing(key);
    }
    if (std::exchange(it->second->held, true)) return BlobBusy(key);
    return std::make_unique<MemoryStaging>(shelf_, it->second);
  }
  absl::StatusOr<std::shared_ptr<const Mapping>> Open(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(CheckKey(key));
    MutexLock lock(shelf_->mutex);
    const auto it = shelf_->blobs.find(key);
    if (it == shelf_->blobs.end() || it->second->state != BlobState::kSealed) {
      return BlobMissing(key);
    }
    return std::make_shared<MemoryMapping>(it->second);
  }
  absl::Status Delete(std::string_view key) override {
    LORRY_RETURN_IF_ERROR(CheckKey(key));
    MutexLock lock(shelf_->mutex);
    const auto it = shelf_->blobs.find(key);
    if (it == shelf_->blobs.end()) return BlobMissing(key);
    if (it->second->state == BlobState::kStaging && it->second->held) return BlobBusy(key);
    shelf_->blobs.erase(it);
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<BlobInfo>> List() override {
    MutexLock lock(shelf_->mutex);
    std::vector<BlobInfo> found;
    for (const auto& [key, blob] : shelf_->blobs) {
      found.push_back({.key = key, .bytes = blob->bytes.size(), .state = blob->state});
    }
    return found;
  }

 private:
  const uint64_t bytes_max_;
  const std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore(uint64_t bytes_max) {
  return std::make_unique<MemoryStore>(bytes_max);
}

}  // namespace lorry::blob
