#include "lib/kv/store.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::kv {
namespace {

constexpr size_t kPageEntries = 1000;

absl::Status Invalid(std::string_view why) {
  return Error(absl::StatusCode::kInvalidArgument, "", why);
}

}  // namespace

Transaction& Transaction::IfRevision(std::string key, uint64_t revision) {
  conditions.push_back({.key = std::move(key), .revision = revision});
  return *this;
}

Transaction& Transaction::Put(std::string key, std::string value) {
  puts.emplace_back(std::move(key), std::move(value));
  return *this;
}

Transaction& Transaction::Delete(std::string key) {
  deletes.push_back(std::move(key));
  return *this;
}

absl::Status CheckTransaction(const Transaction& transaction) {
  size_t bytes = 0;
  std::set<std::string_view> written;
  const auto check_key = [&bytes](const std::string& key) {
    bytes += key.size();
    return !key.empty() && key.size() <= kKeyBytesMax;
  };
  for (const auto& condition : transaction.conditions) {
    if (!check_key(condition.key)) return Invalid("a condition's key is empty or too long");
  }
  for (const auto& [key, value] : transaction.puts) {
    if (!check_key(key)) return Invalid("a key to put is empty or too long");
    bytes += value.size();
    if (!written.insert(key).second) return Invalid("a key is written twice in one transaction");
  }
  for (const std::string& key : transaction.deletes) {
    if (!check_key(key)) return Invalid("a key to delete is empty or too long");
    if (!written.insert(key).second) return Invalid("a key is written twice in one transaction");
  }
  if (bytes > kTransactionBytesMax) {
    return Error(
        absl::StatusCode::kInvalidArgument, "TRANSACTION_TOO_LARGE",
        absl::StrCat("a transaction of ", bytes, " bytes; the limit is ", kTransactionBytesMax));
  }
  return absl::OkStatus();
}

absl::Status ConditionFailed(std::string_view key, uint64_t wanted, uint64_t found) {
  const auto describe = [](uint64_t revision) {
    return revision == 0 ? std::string("absent") : absl::StrCat("of revision ", revision);
  };
  return Error(absl::StatusCode::kAborted, "CONDITION_FAILED",
               absl::StrCat("the key ", std::string(key), " is ", describe(found), ", not ",
                            describe(wanted), "; read again"));
}

absl::StatusOr<std::vector<Entry>> ListAll(Reader& reader, std::string_view prefix) {
  std::vector<Entry> all;
  Range range{.prefix = std::string(prefix), .limit = kPageEntries};
  while (true) {
    LORRY_ASSIGN_OR_RETURN(std::vector<Entry> page, reader.List(range));
    const bool last = page.size() < kPageEntries;
    for (Entry& entry : page) all.push_back(std::move(entry));
    if (last) return all;
    range.start = all.back().key + '\0';
  }
}

absl::StatusOr<std::vector<Entry>> ListAll(Store& store, std::string_view prefix) {
  LORRY_ASSIGN_OR_RETURN(const std::unique_ptr<Snapshot> snapshot, store.TakeSnapshot());
  return ListAll(*snapshot, prefix);
}

}  // namespace lorry::kv
