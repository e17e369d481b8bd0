// A pure machine's records in a kv::Store: load at start, persist what each Ready brings.
//
// A record is {key, optional value}; no value deletes. `Encode(value)` is found beside the value's
// type, `decode` reads it back. With a fence key every transaction is conditional on nobody else
// having written that key since this journal did: a leader that lost its term writes nothing
// (ABORTED CONDITION_FAILED), and its driver ends.
//
// One thread at a time; the store outlives it.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/kv/store.h"

namespace lorry::kv {

// Whether one of `records`, whose value is a variant, writes a T.
template <typename T, typename Record>
bool Writes(const std::vector<Record>& records) {
  return std::any_of(records.begin(), records.end(), [](const Record& record) {
    return record.value.has_value() && std::holds_alternative<T>(*record.value);
  });
}

template <typename Value>
class RecordJournal {
 public:
  using Decode = std::function<absl::StatusOr<Value>(std::string_view)>;

  RecordJournal(Store& store, std::string prefix, Decode decode, std::string fence_key = "")
      : store_(store),
        prefix_(std::move(prefix)),
        decode_(std::move(decode)),
        fence_key_(std::move(fence_key)) {}

  // DATA_LOSS RECORD_UNREADABLE names the record that cannot be read.
  absl::StatusOr<std::map<std::string, Value>> Load() {
    LORRY_ASSIGN_OR_RETURN(const std::vector<Entry> entries, ListAll(store_, prefix_));
    std::map<std::string, Value> records;
    fence_revision_ = 0;
    for (const Entry& entry : entries) {
      std::string key = entry.key.substr(prefix_.size());
      absl::StatusOr<Value> value = decode_(entry.value);
      if (!value.ok()) {
        return Error(
            absl::StatusCode::kDataLoss, "RECORD_UNREADABLE",
            absl::StrCat(
                entry.key, ": ", value.status().message(),
                "; restore the database from a backup, or start with an empty data directory"));
      }
      if (key == fence_key_) fence_revision_ = entry.revision;
      records.emplace(std::move(key), *std::move(value));
    }
    return records;
  }

  // The same, and no other journal writes from before what is read here: its fence is written anew
  // first. One that still wrote while this one read would be overlooked.
  absl::StatusOr<std::map<std::string, Value>> TakeOver() {
    LORRY_ASSIGN_OR_RETURN(const auto records, Load());
    const auto fence = records.find(fence_key_);
    if (fence == records.end()) return records;  // nobody has written yet; the first to do so wins
    Transaction transaction;
    transaction.Put(prefix_ + fence_key_, Encode(fence->second));
    transaction.IfRevision(prefix_ + fence_key_, fence_revision_);
    LORRY_RETURN_IF_ERROR(store_.Commit(transaction).status());
    return Load();
  }

  // All of `records` in one transaction, durable when it returns OK.
  template <typename Record>
  absl::Status Persist(const std::vector<Record>& records) {
    if (records.empty()) return absl::OkStatus();
    Transaction transaction;
    // A batch of steps may write one record several times; the last one counts.
    std::map<std::string, const Record*> last;
    for (const Record& record : records) last[record.key] = &record;
    for (const auto& [key, record] : last) {
      if (record->value.has_value()) {
        transaction.Put(prefix_ + key, Encode(*record->value));
      } else {
        transaction.Delete(prefix_ + key);
      }
    }
    if (!fence_key_.empty()) transaction.IfRevision(prefix_ + fence_key_, fence_revision_);
    LORRY_ASSIGN_OR_RETURN(const uint64_t revision, store_.Commit(transaction));
    if (last.contains(fence_key_)) fence_revision_ = revision;
    return absl::OkStatus();
  }

 private:
  Store& store_;
  const std::string prefix_;
  const Decode decode_;
  const std::string fence_key_;
  uint64_t fence_revision_ = 0;  // of the commit that last wrote the fence key, 0 for none
};

}  // namespace lorry::kv
