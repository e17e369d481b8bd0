#include "services/adapter_store/images/collector.h"

#include <set>
#include <string>

#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"

namespace lorry::store {

absl::StatusOr<int> Collector::Run() {
  LORRY_ASSIGN_OR_RETURN(const std::vector<blob::BlobInfo> files, blobs_.List());
  LORRY_ASSIGN_OR_RETURN(const std::vector<Blob> records, catalog_.ListBlobs());
  int removed = 0;
  const auto remove = [&](const std::string& key) -> absl::StatusOr<bool> {
    const absl::Status deleted = blobs_.Delete(key);
    LORRY_FAULT_POINT("store.collect.file_deleted");
    if (deleted.ok()) ++removed;
    if (ReasonOf(deleted) == "BLOB_BUSY") return false;  // a connection still writes to it
    if (!deleted.ok() && !absl::IsNotFound(deleted)) return deleted;
    return true;
  };

  std::set<std::string> known;
  const int64_t now = now_unix_ms_();
  for (const Blob& record : records) {
    known.insert(record.key.value);
    if (record.state != BlobState::kDeleting || record.remove_after_ms > now) continue;
    LORRY_ASSIGN_OR_RETURN(const bool gone, remove(record.key.value));
    if (gone) LORRY_RETURN_IF_ERROR(catalog_.ForgetBlob(record.key));
    LORRY_FAULT_POINT("store.collect.record_forgotten");
  }
  for (const blob::BlobInfo& file : files) {
    if (known.contains(file.key)) continue;
    LORRY_RETURN_IF_ERROR(remove(file.key).status());
  }
  return removed;
}

}  // namespace lorry::store
