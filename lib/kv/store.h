// kv::Store: a small ordered map with transactions and revisions. What a service must remember
// lives here.
//
// Every commit has a revision, counted from 1; every entry knows the revision that last wrote it. A
// transaction's conditions compare those, so that a commit happens on what its author has read, or
// not at all. This is etcd's model: a lease's key under a condition is a leader's fence.
//
// Implementations are thread-safe; every one passes tests/contract/kv.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorry::kv {

// A guard against what has gone wrong, far above what a service writes at once: the records of ten
// thousand pools, of 64 decisions each, fit. SQLite takes up to a billion bytes in one value.
inline constexpr size_t kTransactionBytesMax = 256 << 20;
inline constexpr size_t kKeyBytesMax = 1024;

struct Entry {
  std::string key;
  std::string value;
  uint64_t revision = 0;  // of the commit that last wrote it
  bool operator==(const Entry&) const = default;
};

// Keys that begin with `prefix`, from `start` on (inclusive; empty = from the first), in byte
// order. The next page starts at the last key + '\0'.
struct Range {
  std::string prefix;
  std::string start = {};
  size_t limit = 1000;
};

// All conditions hold, then deletes and puts happen together. Build it by chaining:
//   kv::Transaction().IfRevision("term", 7).Put("pool/a", bytes).Delete("sync/a")
struct Transaction {
  struct Condition {
    std::string key;
    uint64_t revision;  // 0 = the key is absent
  };
  std::vector<Condition> conditions;
  std::vector<std::string> deletes;  // of an absent key: no error
  std::vector<std::pair<std::string, std::string>> puts;

  Transaction& IfRevision(std::string key, uint64_t revision);
  // REQUIRES of both: a key is put or deleted at most once.
  Transaction& Put(std::string key, std::string value);
  Transaction& Delete(std::string key);
};

class Reader {
 public:
  virtual ~Reader() = default;
  virtual absl::StatusOr<std::optional<Entry>> Get(std::string_view key) = 0;
  virtual absl::StatusOr<std::vector<Entry>> List(const Range& range) = 0;
};

// One state of the store, unmoved by later commits. Short-lived: it holds back the reuse of space.
class Snapshot : public Reader {
 public:
  virtual uint64_t revision() const = 0;  // of the last commit in it; 0 = none yet
};

class Store : public Reader {
 public:
  // Returns the new revision once the transaction is durable. Every reader sees all of it or
  // nothing. Errors change nothing:
  //   ABORTED CONDITION_FAILED          a condition does not hold; read again and decide again
  //   INVALID_ARGUMENT                  TRANSACTION_TOO_LARGE, or a key is empty, too long or
  //                                     written twice
  //   RESOURCE_EXHAUSTED DISK_FULL      make room and try again
  //   DATA_LOSS DATABASE_CORRUPT        restore it from a backup
  //   UNAVAILABLE STORE_FAILED          the disk failed: whether this commit lasts is not known,
  //                                     and further commits are refused until it is opened again
  virtual absl::StatusOr<uint64_t> Commit(const Transaction& transaction) = 0;
  virtual absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() = 0;
};

// For implementations: what all of them check before anything else, and how a failed condition
// reads.
absl::Status CheckTransaction(const Transaction& transaction);
absl::Status ConditionFailed(std::string_view key, uint64_t wanted, uint64_t found);

// All entries under `prefix`, page by page: of one snapshot, for loading at start.
absl::StatusOr<std::vector<Entry>> ListAll(Reader& reader, std::string_view prefix);
absl::StatusOr<std::vector<Entry>> ListAll(Store& store, std::string_view prefix);

}  // namespace lorry::kv
