#include "services/adapter_store/catalog/draft.h"

#include "absl/strings/numbers.h"
#include "lib/base/error.h"

namespace lorry::store {

absl::StatusOr<std::optional<std::string>> Draft::GetText(const std::string& key) {
  if (const auto written = writes_.find(key); written != writes_.end()) return written->second;
  LORRY_ASSIGN_OR_RETURN(std::optional<kv::Entry> entry, store_.Get(key));
  read_.emplace(key, entry.has_value() ? entry->revision : 0);
  if (!entry.has_value()) return std::optional<std::string>();
  return std::optional<std::string>(std::move(entry->value));
}

absl::StatusOr<uint64_t> Draft::GetNumber(const std::string& key) {
  LORRY_ASSIGN_OR_RETURN(const std::optional<std::string> text, GetText(key));
  uint64_t value = 0;
  if (text.has_value() && !absl::SimpleAtoi(*text, &value)) {
    return Error(absl::StatusCode::kDataLoss, "CATALOG_CORRUPT",
                 "the counter " + key + " of the catalogue is no number");
  }
  return value;
}

absl::Status Draft::Commit() {
  kv::Transaction transaction;
  for (const auto& [key, revision] : read_) transaction.IfRevision(key, revision);
  for (auto& [key, value] : writes_) {
    if (value.has_value()) {
      transaction.Put(key, *std::move(value));
    } else {
      transaction.Delete(key);
    }
  }
  return store_.Commit(transaction).status();
}

absl::Status ForEach(kv::Reader& reader, std::string_view prefix, std::string_view start,
                     absl::FunctionRef<absl::StatusOr<bool>(const kv::Entry&)> visit) {
  kv::Range range{.prefix = std::string(prefix), .start = std::string(start)};
  while (true) {
    LORRY_ASSIGN_OR_RETURN(const std::vector<kv::Entry> page, reader.List(range));
    for (const kv::Entry& entry : page) {
      LORRY_ASSIGN_OR_RETURN(const bool more, visit(entry));
      if (!more) return absl::OkStatus();
    }
    if (page.size() < range.limit) return absl::OkStatus();
    range.start = page.back().key + '\0';
  }
}

}  // namespace lorry::store
