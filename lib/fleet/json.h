// The text of both machines' records.
//
// A record is written as canonical JSON, {"kind": ..., fields}; nlohmann sorts keys, so equal
// records are equal text. Versions of the program read each other's: a field that is not there has
// its type's own value, so that a later version may add one, and a field that is not known is left
// alone. A field never changes its meaning and is never used again for another one. Each version's
// records are kept in tests/unit/*/machine/testdata, and every later version reads them.
//
// Pure functions, any thread.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"
#include "nlohmann/json.hpp"

namespace lorry::fleet {

using Json = nlohmann::json;

// The field, or T's own value where the record has none. Throws nlohmann's exceptions where it has
// one of another type; DecodeRecord keeps them inside.
template <typename T>
T Field(const Json& record, const char* key, T otherwise = T()) {
  const auto it = record.find(key);
  return it == record.end() || it->is_null() ? otherwise : it->template get<T>();
}
inline std::string Text(const Json& record, const char* key) {
  return Field<std::string>(record, key);
}

// The traits of a version, among the fields of the record that names it.
inline void AddTraits(Json& record, const VersionTraits& traits) {
  record["rank_max"] = traits.rank_max;
  record["rslora"] = traits.rslora;
  record["pattern"] = traits.rank_or_alpha_pattern;
  record["partial"] = traits.partial_groups;
  record["zero"] = traits.all_b_zero;
  record["relative_norm_ppm"] = traits.relative_norm_ppm;
  record["modules"] = traits.modules;
}
inline VersionTraits TraitsFrom(const Json& record) {
  return {.rank_max = Field<uint32_t>(record, "rank_max"),
          .rslora = Field<bool>(record, "rslora"),
          .rank_or_alpha_pattern = Field<bool>(record, "pattern"),
          .partial_groups = Field<bool>(record, "partial"),
          .all_b_zero = Field<bool>(record, "zero"),
          .relative_norm_ppm = Field<uint32_t>(record, "relative_norm_ppm"),
          .modules = Field<std::vector<std::string>>(record, "modules")};
}

// By the record's kind. DATA_LOSS RECORDS_INVALID: a kind that this version does not know, or a
// field of another type. A later version's kind is not passed over: it may be a promise.
template <typename Value>
using RecordReaders = std::map<std::string, Value (*)(const Json&)>;
template <typename Value>
absl::StatusOr<Value> DecodeRecord(std::string_view text, const RecordReaders<Value>& readers) {
  const auto invalid = [](std::string_view why) {
    return Error(absl::StatusCode::kDataLoss, "RECORDS_INVALID",
                 absl::StrCat("a stored record cannot be read: ", std::string(why)));
  };
  try {
    const Json record = Json::parse(text);
    const std::string kind = record.at("kind").template get<std::string>();
    const auto reader = readers.find(kind);
    if (reader == readers.end()) return invalid("unknown kind " + kind);
    return reader->second(record);
  } catch (const Json::exception& e) {
    return invalid(e.what());
  }
}

}  // namespace lorry::fleet
