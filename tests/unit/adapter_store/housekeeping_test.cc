#include "services/adapter_store/housekeeping.h"

#include <future>
#include <thread>

#include "tests/testing/refusing_kv.h"
#include "tests/unit/adapter_store/images_dsl.h"

namespace lorry::store {
namespace {

class HousekeepingTest : public ImagesTest {
 protected:
  // What the first proof said, once it was made.
  absl::Status FirstProof() {
    Housekeeping housekeeping(*catalog_, *uploads_, *collector_, /*interval_ms=*/1,
                              [this](const absl::Status& why) { fatal_.set_value(why); });
    while (true) {
      const absl::Status proof = housekeeping.Writable();
      if (!absl::IsUnavailable(proof)) return proof;
      std::this_thread::yield();
    }
  }
  void RefuseWrites(absl::Status how) {
    auto refusing = std::make_unique<RefusingStore>();
    RefusingStore& refuses = *refusing;
    uploads_.reset();
    kv_ = std::move(refusing);
    RestartAll();
    OpenRun();
    refuses.how = std::move(how);
    refuses.refuses = true;
  }
  bool EndsTheProgram() {
    return fatal_.get_future().wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
  std::promise<absl::Status> fatal_;
};

TEST_F(HousekeepingTest, AStoreThatCanWriteSaysSo) { EXPECT_THAT(FirstProof(), IsOk()); }

TEST_F(HousekeepingTest, AStoreThatCanOnlyReadIsFoundOut) {
  RefuseWrites(Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "as planned"));
  EXPECT_THAT(catalog_->Revision(), IsOk()) << "reading says nothing";
  EXPECT_THAT(FirstProof(), IsError("DISK_FULL"));
  EXPECT_FALSE(EndsTheProgram()) << "there may be room again";
}

TEST_F(HousekeepingTest, AStoreThatRefusesAllWritesUntilItIsOpenedAgainEnds) {
  RefuseWrites(Error(absl::StatusCode::kUnavailable, "STORE_FAILED", "as planned"));
  {
    Housekeeping housekeeping(*catalog_, *uploads_, *collector_, /*interval_ms=*/1,
                              [this](const absl::Status& why) { fatal_.set_value(why); });
    EXPECT_THAT(fatal_.get_future().get(), IsError("STORE_FAILED"));
  }
}

}  // namespace
}  // namespace lorry::store
