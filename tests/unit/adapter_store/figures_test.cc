// What a scrape does while the disk keeps whoever reads it.
#include "services/adapter_store/figures.h"

#include <future>
#include <utility>

#include "absl/strings/match.h"
#include "services/adapter_store/store_metrics.h"
#include "tests/testing/eventually.h"
#include "tests/unit/adapter_store/catalog_dsl.h"

namespace lorry::store {
namespace {

using ::testing::HasSubstr;

// Whose commits wait when told to, and keep whoever reads meanwhile: as SQLite's that wait for the
// disk.
class StallingStore final : public kv::Store {
 public:
  absl::StatusOr<uint64_t> Commit(const kv::Transaction& transaction) override {
    MutexLock lock(mutex_);
    if (std::exchange(stalls_, false)) {
      stalled_.set_value();
      released_.get_future().wait();
    }
    return inner_->Commit(transaction);
  }
  absl::StatusOr<std::unique_ptr<kv::Snapshot>> TakeSnapshot() override {
    MutexLock lock(mutex_);
    return inner_->TakeSnapshot();
  }
  absl::StatusOr<std::optional<kv::Entry>> Get(std::string_view key) override {
    MutexLock lock(mutex_);
    return inner_->Get(key);
  }
  absl::StatusOr<std::vector<kv::Entry>> List(const kv::Range& range) override {
    MutexLock lock(mutex_);
    return inner_->List(range);
  }

  // The next commit, once.
  void StallNext() {
    MutexLock lock(mutex_);
    stalls_ = true;
  }
  void WaitUntilStalled() { stalled_.get_future().wait(); }
  void Release() { released_.set_value(); }

 private:
  const std::unique_ptr<kv::Store> inner_ = kv::MakeMemoryStore();
  Mutex mutex_;
  bool stalls_ LORRY_GUARDED_BY(mutex_) = false;
  std::promise<void> stalled_, released_;
};

class FiguresTest : public CatalogTest {
 protected:
  FiguresTest() {
    auto stalling = std::make_unique<StallingStore>();
    disk_ = stalling.get();
    catalog_.reset();
    kv_ = std::move(stalling);
    Restart();
  }
  absl::Status Create(const std::string& adapter) {
    return catalog_->SetAdapter(AdapterName(adapter), {}, std::nullopt).status();
  }
  static std::string Shown(const std::string& adapter) {
    return absl::StrCat("lorry_store_adapter_bytes{adapter=\"", adapter, "\"}");
  }

  // By a scrape, of which each waits for a second at most.
  bool IsShown(const std::string& adapter) {
    const auto shows = [&] { return absl::StrContains(registry_.Scrape(), Shown(adapter)); };
    return Eventually(shows, std::chrono::seconds(30));
  }

  StallingStore* disk_ = nullptr;
  metrics::Registry registry_{{.service = "test", .version = "0"}};
  StoreMetrics metrics_{registry_};
};

TEST_F(FiguresTest, AScrapeThatTheDiskKeepsShowsWhatWasTrueBefore) {
  const Figures figures(registry_, [this] { metrics_.Refresh(*catalog_); });
  ASSERT_THAT(Create("before"), IsOk());
  ASSERT_TRUE(IsShown("before"));
  disk_->StallNext();
  auto created = std::async(std::launch::async, [this] { return Create("kept"); });
  disk_->WaitUntilStalled();
  auto first = std::async(std::launch::async, [this] { return registry_.Scrape(); });
  const bool answered = first.wait_for(std::chrono::seconds(30)) == std::future_status::ready;
  disk_->Release();
  ASSERT_TRUE(answered) << "the probes would wait for the disk behind it";
  EXPECT_THAT(first.get(), HasSubstr(Shown("before")));
  EXPECT_THAT(created.get(), IsOk());
  EXPECT_TRUE(IsShown("kept"));
}

}  // namespace
}  // namespace lorry::store
