// A store in which somebody else comes first. One thread.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "lib/kv/store.h"

namespace lorry::kv {

// Lets something happen in front of a commit.
class RacingStore final : public Store {
 public:
  explicit RacingStore(Store& store) : store_(store) {}

  absl::StatusOr<std::optional<Entry>> Get(std::string_view key) override {
    return store_.Get(key);
  }
  absl::StatusOr<std::vector<Entry>> List(const Range& range) override {
    return store_.List(range);
  }
  absl::StatusOr<uint64_t> Commit(const Transaction& transaction) override {
    ++commits;
    keys_max = std::max(keys_max, transaction.puts.size() + transaction.deletes.size());
    if (!failure.ok()) return failure;
    if (const auto first = std::exchange(race, nullptr)) first();
    return store_.Commit(transaction);
  }
  absl::StatusOr<std::unique_ptr<Snapshot>> TakeSnapshot() override {
    return store_.TakeSnapshot();
  }

  std::function<void()> race;  // once, in front of the next commit
  absl::Status failure;        // of every commit
  int commits = 0;
  size_t keys_max = 0;  // that one of them wrote

 private:
  Store& store_;
};

}  // namespace lorry::kv
