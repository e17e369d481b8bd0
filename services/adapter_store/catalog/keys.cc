#include "services/adapter_store/catalog/keys.h"

#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry::store::keys {
namespace {

// "/<adapter>/<run>/<number>", newest first within the adapter.
std::string Path(const VersionKey& key) {
  return absl::StrCat(key.adapter.value, "/", Descending(key.run.value), "/",
                      Descending(key.number.value));
}

}  // namespace

std::string Ascending(uint64_t n) { return absl::StrCat(absl::Hex(n, absl::kZeroPad16)); }

std::string Descending(uint64_t n) { return Ascending(std::numeric_limits<uint64_t>::max() - n); }

std::string OfAdapter(const AdapterName& adapter) { return absl::StrCat(kAdapters, adapter.value); }
std::string OfGoneAdapter(const AdapterName& adapter) {
  return absl::StrCat("gone/", adapter.value);
}
std::string RunsOf(const AdapterName& adapter) { return absl::StrCat("run/", adapter.value, "/"); }
std::string OfRun(const AdapterName& adapter, RunId run) {
  return absl::StrCat(RunsOf(adapter), Descending(run.value));
}
std::string OfRequest(const AdapterName& adapter, std::string_view request_id) {
  // Hex, because a request id may hold any bytes.
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(request_id.data()),
                                       request_id.size());
  return RequestsOf(adapter) + ToHex(bytes);
}
std::string RequestsOf(const AdapterName& adapter) {
  return absl::StrCat("request/", adapter.value, "/");
}
std::string VersionsOf(const AdapterName& adapter) {
  return absl::StrCat(kVersions, adapter.value, "/");
}
std::string VersionsOf(const AdapterName& adapter, RunId run) {
  return absl::StrCat(VersionsOf(adapter), Descending(run.value), "/");
}
std::string OfVersion(const VersionKey& key) { return absl::StrCat(kVersions, Path(key)); }
std::string OfTombstone(const VersionKey& key) { return absl::StrCat("tombstone/", Path(key)); }
std::string TombstonesOf(const AdapterName& adapter) {
  return absl::StrCat("tombstone/", adapter.value, "/");
}
std::string OfAttempt(const VersionKey& key) { return absl::StrCat("attempt/", Path(key)); }
std::string AttemptsOf(const AdapterName& adapter) {
  return absl::StrCat("attempt/", adapter.value, "/");
}
std::string AliasesOf(const AdapterName& adapter) {
  return absl::StrCat(kAliases, adapter.value, "/");
}
std::string OfAlias(const AdapterName& adapter, const AliasName& alias) {
  return absl::StrCat(AliasesOf(adapter), alias.value);
}
std::string OfHolder(std::string_view holder) { return absl::StrCat(kHolds, ToAbsl(holder)); }
std::string OfOpenUpload(const UploadId& id) { return absl::StrCat(kOpenUploads, id.value); }
std::string OfEndedUpload(const UploadId& id) { return absl::StrCat(kEndedUploads, id.value); }
std::string OfLedger(const UploadId& id) { return absl::StrCat("ledger/", id.value); }
std::string OfBlob(const BlobKey& key) { return absl::StrCat(kBlobs, key.value); }
std::string OfDoomed(const BlobKey& key) { return absl::StrCat(kDoomed, key.value); }
std::string LeavesOf(const BlobKey& key) { return absl::StrCat("leaves/", key.value, "/"); }
std::string OfEngineName(const EngineName& name) {
  return absl::StrCat("engine_name/", name.value);
}
std::string OfLog(uint64_t revision) { return absl::StrCat(kLog, Ascending(revision)); }

}  // namespace lorry::store::keys
