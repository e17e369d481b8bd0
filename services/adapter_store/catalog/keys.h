// The catalogue's layout in the key-value store. Numbers that are listed newest first are written
// as 16 hex digits of their complement, so that a plain forward scan gives that order.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "services/adapter_store/catalog/records.h"

namespace lorry::store::keys {

inline constexpr char kInstance[] = "meta/instance";  // random, of the data directory's first start
inline constexpr char kNextId[] = "meta/next_id";     // for blobs
inline constexpr char kRevision[] = "meta/revision";  // of the last change
inline constexpr char kLogBegin[] = "meta/log_begin";  // the first revision that the log still has
inline constexpr char kBytes[] = "meta/stored_bytes";  // of all live versions
inline constexpr char kVersionCount[] = "meta/versions";  // live ones
inline constexpr char kHoldsStamp[] = "meta/holds";       // written with every holder set

inline constexpr char kProof[] = "meta/written_at_ms";  // by ProveWritable

inline constexpr char kAdapters[] = "adapter/";
inline constexpr char kOpenUploads[] = "open/";
inline constexpr char kEndedUploads[] = "ended/";
inline constexpr char kBlobs[] = "blob/";
inline constexpr char kDoomed[] = "doomed/";  // index of the blobs that are DELETING
inline constexpr char kHolds[] = "holds/";
inline constexpr char kLog[] = "log/";
inline constexpr char kVersions[] = "version/";
inline constexpr char kAliases[] = "alias/";

// 16 hex digits: `n` ascending, or descending.
std::string Ascending(uint64_t n);
std::string Descending(uint64_t n);

std::string OfAdapter(const AdapterName& adapter);
std::string OfGoneAdapter(const AdapterName& adapter);
std::string RequestsOf(const AdapterName& adapter);  // prefix
std::string RunsOf(const AdapterName& adapter);      // prefix
std::string OfRun(const AdapterName& adapter, RunId run);
std::string OfRequest(const AdapterName& adapter, std::string_view request_id);
std::string VersionsOf(const AdapterName& adapter);             // prefix
std::string VersionsOf(const AdapterName& adapter, RunId run);  // prefix
std::string OfVersion(const VersionKey& key);
std::string OfTombstone(const VersionKey& key);
std::string TombstonesOf(const AdapterName& adapter);  // prefix
std::string OfAttempt(const VersionKey& key);
std::string AliasesOf(const AdapterName& adapter);  // prefix
std::string OfAlias(const AdapterName& adapter, const AliasName& alias);
std::string OfHolder(std::string_view holder);
std::string AttemptsOf(const AdapterName& adapter);  // prefix
std::string OfOpenUpload(const UploadId& id);
std::string OfEndedUpload(const UploadId& id);
std::string OfLedger(const UploadId& id);
std::string OfBlob(const BlobKey& key);
std::string OfDoomed(const BlobKey& key);
std::string LeavesOf(const BlobKey& key);  // prefix
std::string OfEngineName(const EngineName& name);
std::string OfLog(uint64_t revision);

}  // namespace lorry::store::keys
