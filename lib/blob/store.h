// blob::Store: image files, written once, then immutable.
//
// A key is chosen by the caller (its catalogue) and never used again, also after a delete: the
// store refuses a key that it holds, and cannot know those it once held. A blob is STAGING until
// Seal has made it durable under its key; stagings survive a crash, so that an upload goes on where
// it was, and are listed, so that nobody's are removed.
//
// Implementations are thread-safe; every one passes tests/contract/blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry::blob {

// A sealed blob's bytes. Valid while held, also after Delete.
class Mapping {
 public:
  virtual ~Mapping() = default;
  virtual std::span<const std::byte> bytes() const = 0;
  // Reads a part into memory, which takes as long as the disk does. Before those bytes are touched,
  // since a disk that fails then ends the process. `offset` is a multiple of 1 MiB. DATA_LOSS
  // DISK_FAILED when the disk does not give the part back; content is its reader's to check.
  virtual absl::Status Load(uint64_t offset, uint64_t length) const = 0;
};

// A blob being written. Threads may write disjoint ranges of bytes() at once; Sync and Seal come
// from one of them. Dropped without Seal it stays listed as STAGING.
class Staging {
 public:
  virtual ~Staging() = default;
  // The whole blob, zeroes at first. Space is allocated: writing cannot fail for want of it. They
  // stay readable while the staging is held; once Seal was called nobody may write them.
  virtual std::span<std::byte> bytes() = 0;
  // What was written before is durable when it returns; a ledger of received ranges may then be.
  // DATA_LOSS DISK_FAILED: the disk refused to keep some of it. Trying again proves nothing,
  // because the system forgets which pages it failed to write; such a blob is to be deleted.
  virtual absl::Status Sync() = 0;
  // Durable under its key and visible to Open when it returns. On an error it is still STAGING;
  // DATA_LOSS means what it means for Sync, and any other error may be tried again.
  virtual absl::Status Seal() = 0;
};

enum class BlobState { kStaging, kSealed };

struct BlobInfo {
  std::string key;
  uint64_t bytes = 0;
  BlobState state = BlobState::kSealed;
  auto operator<=>(const BlobInfo&) const = default;
};

class Store {
 public:
  virtual ~Store() = default;
  // ALREADY_EXISTS BLOB_EXISTS; RESOURCE_EXHAUSTED DISK_FULL, leaving nothing behind;
  // INVALID_ARGUMENT (key, size 0).
  virtual absl::StatusOr<std::unique_ptr<Staging>> Create(std::string_view key, uint64_t bytes) = 0;
  // Goes on with a staging that nobody holds: of a process that crashed. NOT_FOUND;
  // FAILED_PRECONDITION BLOB_BUSY.
  virtual absl::StatusOr<std::unique_ptr<Staging>> Resume(std::string_view key) = 0;
  // Maps a blob, of which nothing is read yet. NOT_FOUND, also for a staging; DATA_LOSS when its file
  // was emptied.
  virtual absl::StatusOr<std::shared_ptr<const Mapping>> Open(std::string_view key) = 0;
  // Sealed or staging, durably gone when it returns. NOT_FOUND; BLOB_BUSY for a staging that
  // somebody holds.
  virtual absl::Status Delete(std::string_view key) = 0;
  // By key. The sum of `bytes` is the space in use.
  virtual absl::StatusOr<std::vector<BlobInfo>> List() = 0;
};

// ^[a-z0-9][a-z0-9._-]{0,127}$: a file name on any system, a path nowhere.
absl::Status CheckKey(std::string_view key);

absl::StatusOr<uint64_t> BytesUsed(Store& store);

// How every implementation words these: NOT_FOUND, ALREADY_EXISTS BLOB_EXISTS, FAILED_PRECONDITION
// BLOB_BUSY.
absl::Status BlobMissing(std::string_view key);
absl::Status BlobExists(std::string_view key);
absl::Status BlobBusy(std::string_view key);

}  // namespace lorry::blob
