#include "services/adapter_store/housekeeping.h"

#include <atomic>
#include <thread>

#include "tests/unit/adapter_store/images_dsl.h"

namespace lorry::store {
namespace {

// Refuses to write when told to.
class FullStore final : public kv::Store {
 public:
  absl::StatusOr<uint64_t> Commit(const kv::Transaction& transaction) override {
    if (full) return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "as planned");
    return inner_->Commit(transaction);
  }
  absl::StatusOr<std::unique_ptr<kv::Snapshot>> TakeSnapshot() override {
    return inner_->TakeSnapshot();
  }
  absl::StatusOr<std::optional<kv::Entry>> Get(std::string_view key) override {
    return inner_->Get(key);
  }
  absl::StatusOr<std::vector<kv::Entry>> List(const kv::Range& range) override {
    return inner_->List(range);
  }
  std::atomic<bool> full = false;

 private:
  const std::unique_ptr<kv::Store> inner_ = kv::MakeMemoryStore();
};

class HousekeepingTest : public ImagesTest {
 protected:
  // What the first proof said, once it was made.
  absl::Status FirstProof() {
    Housekeeping housekeeping(*catalog_, *uploads_, *collector_, /*interval_ms=*/1);
    while (true) {
      const absl::Status proof = housekeeping.Writable();
      if (!absl::IsUnavailable(proof)) return proof;
      std::this_thread::yield();
    }
  }
  FullStore* full_ = nullptr;
};

TEST_F(HousekeepingTest, AStoreThatCanWriteSaysSo) { EXPECT_THAT(FirstProof(), IsOk()); }

TEST_F(HousekeepingTest, AStoreThatCanOnlyReadIsFoundOut) {
  auto full = std::make_unique<FullStore>();
  full_ = full.get();
  uploads_.reset();
  kv_ = std::move(full);
  RestartAll();
  OpenRun();
  full_->full = true;
  EXPECT_THAT(catalog_->Revision(), IsOk()) << "reading says nothing";
  EXPECT_THAT(FirstProof(), IsError("DISK_FULL"));
}

}  // namespace
}  // namespace lorry::store
