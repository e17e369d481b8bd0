#include "lib/kv/memory_store.h"

#include <map>
#include <utility>

#include "lib/base/error.h"
#include "lib/base/mutex.h"

namespace lorry::kv {
namespace {

struct State {
  std::map<std::string, Entry, std::less<>> entries;
  uint64_t revision = 0;

  std::optional<Entry> Get(std::string_view key) const {
    const auto it = entries.find(key);
    return it == entries.end() ? std::nullopt : std::optional(it->second);
  }
  std::vector<Entry> List(const Range& range) const {
    std::vector<Entry> found;
    for (auto it = entries.lower_bound(std::max(range.prefix, range.start));
         it != entries.end() && found.size() < range.limit && it->first.starts_with(range.prefix);
         ++it) {
      found.push_back(it->second);
    }
    return found;
  }
};

class MemorySnapshot final : public Snapshot {
 public:
  explicit MemorySnapshot(State state) : state_(std::move(state)) {}
  absl::StatusOr<std::optional<Entry>> Get(std::string_view key) override {
    return state_.Get(key);
  }
  absl::StatusOr<std::vector<Entry>> List(const Range& range) override {
    return state_.List(range);
  }
  uint64_t revision() const override { return state_.revision; }

 private:
  const State state_;
};

class MemoryStore final : public Store {
 public:
  absl::StatusOr<std::optional<Entry>> Get(std::string_view key) override {
    MutexLock lock(mutex_);
    return state_.Get(key);
  }
  absl::StatusOr<std::vector<Entry>> List(const Range& range) override {
    MutexLock lock(mutex_);
    return state_.List(range);
  }
  absl::StatusOr<uint64_t> Commit(const Transaction& transaction) override {
    LORRY_RETURN_IF_ERROR(CheckTransaction(transaction));
    MutexLock lock(mutex_);
    for (const auto& [key, wanted] : transaction.conditions) {
      const std::optional<Entry> entry = state_.Get(key);
      const uint64_t found = entry.has_value() ? entry->revision : 0;
      if (found != wanted) return ConditionFailed(key, wanted, found);
    }
    const uint64_t revision = ++state_.revision;
    for (const std::string& key : transaction.deletes) state_.entries.erase(key);
    for (const auto& [key, value] : transaction.puts) {
      state_.entries[key] = Entry{.key = key, .value = value, .revision = revision};
    }
    return revision;
  }
  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override {
    MutexLock lock(mutex_);
    return std::make_unique<MemorySnapshot>(state_);
  }

 private:
  Mutex mutex_;
  State state_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace lorry::kv
