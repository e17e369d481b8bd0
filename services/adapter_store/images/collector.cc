#include "services/adapter_store/images/collector.h"

#include <spdlog/spdlog.h>

#include <set>
#include <string>

#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"

namespace lorry::store {

absl::StatusOr<int> Collector::Run() {
  if (!looked_at_all_) {
    LORRY_RETURN_IF_ERROR(LookAtAll());
    looked_at_all_ = true;
  }
  Swept swept;
  std::erase_if(orphans_, [&](const std::string& key) { return Remove(key, swept); });
  LORRY_ASSIGN_OR_RETURN(const std::vector<Blob> doomed, catalog_.ListDoomedBlobs());
  const int64_t now = now_unix_ms_();
  for (const Blob& record : doomed) {
    if (record.remove_after_ms > now) {
      swept.failed.Update(catalog_.ShortenWait(record));
      continue;
    }
    if (Remove(record.key.value, swept)) swept.failed.Update(catalog_.ForgetBlob(record.key));
    LORRY_FAULT_POINT("store.collect.record_forgotten");
  }
  LORRY_RETURN_IF_ERROR(swept.failed);
  return swept.removed;
}

absl::Status Collector::LookAtAll() {
  LORRY_ASSIGN_OR_RETURN(const std::vector<blob::BlobInfo> files, blobs_.List());
  LORRY_ASSIGN_OR_RETURN(const std::vector<Blob> records, catalog_.ListBlobs());
  std::set<std::string> known;
  for (const Blob& record : records) {
    known.insert(record.key.value);
    if (record.state != BlobState::kDeleting) continue;
    LORRY_RETURN_IF_ERROR(catalog_.IndexDoomedBlob(record.key));
  }
  orphans_.clear();
  int foreign = 0;
  for (const blob::BlobInfo& file : files) {
    if (known.contains(file.key)) continue;
    if (catalog_.HasNamed(BlobKey(file.key))) {
      orphans_.push_back(file.key);
    } else {
      ++foreign;
    }
  }
  if (foreign > 0) {
    spdlog::warn(
        "{} image files in blobs/ belong to another catalogue and stay: if catalog.db was lost or "
        "replaced, stop the store and put the right one back (docs/OPERATIONS.md)",
        foreign);
  }
  return absl::OkStatus();
}

// True when the file is gone.
bool Collector::Remove(const std::string& key, Swept& swept) {
  const absl::Status deleted = blobs_.Delete(key);
  LORRY_FAULT_POINT("store.collect.file_deleted");
  if (deleted.ok()) ++swept.removed;
  if (deleted.ok() || absl::IsNotFound(deleted)) return true;
  // A connection may still write to it.
  if (ReasonOf(deleted) != "BLOB_BUSY") swept.failed.Update(Annotate(deleted, "image " + key));
  return false;
}

}  // namespace lorry::store
