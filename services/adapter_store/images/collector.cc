#include "services/adapter_store/images/collector.h"

#include <spdlog/spdlog.h>

#include <set>
#include <string>

#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"

namespace lorry::store {

absl::StatusOr<int> Collector::Run() {
  int removed = 0;
  if (!looked_at_all_) {
    LORRY_RETURN_IF_ERROR(LookAtAll(removed));
    looked_at_all_ = true;
  }
  LORRY_ASSIGN_OR_RETURN(const std::vector<Blob> doomed, catalog_.ListDoomedBlobs());
  const int64_t now = now_unix_ms_();
  for (const Blob& record : doomed) {
    if (record.remove_after_ms > now) continue;
    LORRY_ASSIGN_OR_RETURN(const bool gone, Remove(record.key.value, removed));
    if (gone) LORRY_RETURN_IF_ERROR(catalog_.ForgetBlob(record.key));
    LORRY_FAULT_POINT("store.collect.record_forgotten");
  }
  return removed;
}

absl::Status Collector::LookAtAll(int& removed) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<blob::BlobInfo> files, blobs_.List());
  LORRY_ASSIGN_OR_RETURN(const std::vector<Blob> records, catalog_.ListBlobs());
  std::set<std::string> known;
  for (const Blob& record : records) {
    known.insert(record.key.value);
    if (record.state != BlobState::kDeleting) continue;
    LORRY_RETURN_IF_ERROR(catalog_.IndexDoomedBlob(record.key));
  }
  int foreign = 0;
  for (const blob::BlobInfo& file : files) {
    if (known.contains(file.key)) continue;
    if (catalog_.HasNamed(BlobKey(file.key))) {
      LORRY_RETURN_IF_ERROR(Remove(file.key, removed).status());
    } else {
      ++foreign;
    }
  }
  if (foreign > 0) {
    spdlog::warn(
        "{} image files in blobs/ belong to another catalogue and are left alone: if catalog.db "
        "was "
        "lost or replaced, stop the store and put the right one back (docs/OPERATIONS.md)",
        foreign);
  }
  return absl::OkStatus();
}

// True when the file is gone.
absl::StatusOr<bool> Collector::Remove(const std::string& key, int& removed) {
  const absl::Status deleted = blobs_.Delete(key);
  LORRY_FAULT_POINT("store.collect.file_deleted");
  if (deleted.ok()) ++removed;
  if (ReasonOf(deleted) == "BLOB_BUSY") return false;  // a connection still writes to it
  if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
  return true;
}

}  // namespace lorry::store
