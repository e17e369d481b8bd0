// One transaction while it is decided: reads the store, collects writes, remembers what it read.
//
// Commit succeeds only if no entry that was read by Get has changed since; ABORTED CONDITION_FAILED
// otherwise, and the decision is taken again on a fresh draft. Lists are not remembered: whoever
// decides by a list also reads an entry that every change of that list writes. One thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/error.h"
#include "lib/kv/store.h"
#include "services/adapter_store/catalog/codec.h"

namespace lorry::store {

class Draft {
 public:
  explicit Draft(kv::Store& store) : store_(store) {}

  // What this draft wrote, else what the store holds.
  absl::StatusOr<std::optional<std::string>> GetText(const std::string& key);
  void PutText(const std::string& key, std::string value) { writes_[key] = std::move(value); }
  void Delete(const std::string& key) { writes_[key] = std::nullopt; }

  template <typename Record>
  absl::StatusOr<std::optional<Record>> Get(const std::string& key) {
    LORRY_ASSIGN_OR_RETURN(const std::optional<std::string> text, GetText(key));
    if (!text.has_value()) return std::optional<Record>();
    LORRY_ASSIGN_OR_RETURN(Record record, Decode<Record>(*text));
    return std::optional<Record>(std::move(record));
  }
  template <typename Record>
  void Put(const std::string& key, const Record& record) {
    PutText(key, Encode(record));
  }
  // An absent counter is 0.
  absl::StatusOr<uint64_t> GetNumber(const std::string& key);
  void PutNumber(const std::string& key, uint64_t value) { PutText(key, std::to_string(value)); }

  kv::Store& store() { return store_; }
  bool empty() const { return writes_.empty(); }
  absl::Status Commit();

 private:
  kv::Store& store_;  // outlives the draft
  std::map<std::string, uint64_t> read_;
  std::map<std::string, std::optional<std::string>> writes_;
};

// Calls `visit` with every entry under `prefix` from `start` on, in order, until it returns false.
absl::Status ForEach(kv::Reader& reader, std::string_view prefix, std::string_view start,
                     absl::FunctionRef<absl::StatusOr<bool>(const kv::Entry&)> visit);

// All records under `prefix`.
template <typename Record>
absl::StatusOr<std::vector<Record>> ListRecords(kv::Reader& reader, std::string_view prefix) {
  std::vector<Record> records;
  LORRY_RETURN_IF_ERROR(
      ForEach(reader, prefix, "", [&](const kv::Entry& entry) -> absl::StatusOr<bool> {
        LORRY_ASSIGN_OR_RETURN(Record record, Decode<Record>(entry.value));
        records.push_back(std::move(record));
        return true;
      }));
  return records;
}

// The record at `key`, if there is one.
template <typename Record>
absl::StatusOr<std::optional<Record>> Find(kv::Reader& reader, std::string_view key) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<kv::Entry> entry, reader.Get(key));
  if (!entry.has_value()) return std::optional<Record>();
  LORRY_ASSIGN_OR_RETURN(Record record, Decode<Record>(entry->value));
  return std::optional<Record>(std::move(record));
}

}  // namespace lorry::store
