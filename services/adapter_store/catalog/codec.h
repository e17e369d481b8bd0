// Records as JSON text, so that the catalogue can be read with sqlite3 when something is wrong.
// Unknown fields are ignored: an older binary may read what a newer one wrote. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "services/adapter_store/catalog/records.h"

namespace lorry::store {

// Which upload is the newest attempt at a version.
struct AttemptMark {
  uint64_t attempt = 0;
  UploadId upload;
};

std::string Encode(const Adapter& adapter);
std::string Encode(const GoneAdapter& gone);
std::string Encode(const Run& run);
std::string Encode(const Version& version);
std::string Encode(const Tombstone& tombstone);
std::string Encode(const Alias& alias);
std::string Encode(const Upload& upload);
std::string Encode(const Blob& blob);
std::string Encode(const HolderSet& set);
std::string Encode(const AttemptMark& mark);
std::string Encode(const std::vector<Change>& changes);

// DATA_LOSS CATALOG_CORRUPT when the text is no such record. Defined for the types above.
template <typename Record>
absl::StatusOr<Record> Decode(std::string_view text);

}  // namespace lorry::store
