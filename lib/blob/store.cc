#include "lib/blob/store.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::blob {
namespace {

constexpr size_t kKeyBytesMax = 128;

bool IsWordByte(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }
bool IsKeyByte(char c) { return IsWordByte(c) || c == '.' || c == '_' || c == '-'; }

}  // namespace

absl::Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeyBytesMax && IsWordByte(key[0]) &&
      std::all_of(key.begin(), key.end(), IsKeyByte)) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kInvalidArgument, "",
               "a blob's key must match ^[a-z0-9][a-z0-9._-]{0,127}$");
}

absl::StatusOr<uint64_t> BytesUsed(Store& store) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<BlobInfo> blobs, store.List());
  uint64_t bytes = 0;
  for (const BlobInfo& blob : blobs) bytes += blob.bytes;
  return bytes;
}

absl::Status BlobMissing(std::string_view key) {
  return Error(absl::StatusCode::kNotFound, "", absl::StrCat("no blob ", std::string(key)));
}

absl::Status BlobExists(std::string_view key) {
  return Error(absl::StatusCode::kAlreadyExists, "BLOB_EXISTS",
               absl::StrCat("the blob ", std::string(key), " exists; keys are never used again"));
}

absl::Status BlobBusy(std::string_view key) {
  return Error(absl::StatusCode::kFailedPrecondition, "BLOB_BUSY",
               absl::StrCat("the blob ", std::string(key), " is being written"));
}

}  // namespace lorry::blob
