// Records in memory that refuse to be written when told to, as a disk that is full; or to be read.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/kv/memory_store.h"

namespace lorry {

class RefusingStore final : public kv::Store {
 public:
  absl::StatusOr<uint64_t> Commit(const kv::Transaction& transaction) override {
    if (refuses) return how;
    return inner_->Commit(transaction);
  }
  absl::StatusOr<std::unique_ptr<kv::Snapshot>> TakeSnapshot() override {
    return inner_->TakeSnapshot();
  }
  absl::StatusOr<std::optional<kv::Entry>> Get(std::string_view key) override {
    if (unread.has_value() && key.starts_with(*unread)) {
      return absl::UnavailableError("the disk is away");
    }
    return inner_->Get(key);
  }
  absl::StatusOr<std::vector<kv::Entry>> List(const kv::Range& range) override {
    return inner_->List(range);
  }
  absl::Status how = absl::ResourceExhaustedError("no space left on device");  // before the next
  std::atomic<bool> refuses = false;
  std::optional<std::string> unread;  // keys that begin so; set while nobody reads

 private:
  const std::unique_ptr<kv::Store> inner_ = kv::MakeMemoryStore();
};

}  // namespace lorry
