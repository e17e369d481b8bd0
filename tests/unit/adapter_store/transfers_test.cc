// Images that readers open while others are still read from the disk.
#include <future>
#include <limits>

#include "lib/transfer/ticket.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/adapter_store/images_dsl.h"

namespace lorry::store {
namespace {

using Source = absl::StatusOr<transfer::GetSource>;

// A disk that reads parts of images in the order in which they were asked for, and as many as told.
class SlowDisk {
 public:
  absl::Status Read() {
    MutexLock lock(mutex_);
    const int mine = asked_++;
    changed_.notify_all();
    while (mine >= allowed_) changed_.wait(mutex_);
    return absl::OkStatus();
  }
  void Allow(int parts) {
    MutexLock lock(mutex_);
    allowed_ = parts;
    changed_.notify_all();
  }
  void WaitUntilAsked(int parts) {
    MutexLock lock(mutex_);
    while (asked_ < parts) changed_.wait(mutex_);
  }
  int asked() {
    MutexLock lock(mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int asked_ LORRY_GUARDED_BY(mutex_) = 0;
  int allowed_ LORRY_GUARDED_BY(mutex_) = 0;
};

class TransfersTest : public ImagesTest {
 protected:
  static constexpr uint64_t kPart = 64 << 10;
  static constexpr int kEverything = std::numeric_limits<int>::max();

  TransfersTest() {
    transfers_.emplace(*catalog_, *blobs_, *uploads_, *keys_, clock_,
                       Transfers::Options{.load_bytes = kPart});
  }
  ~TransfersTest() override {
    disk_.Allow(kEverything);
    transfers_.reset();
  }
  Version Publish(uint64_t number, uint64_t width) {
    const auto version = PublishImage(number, MakeAdapter(number, width));
    EXPECT_THAT(version, IsOk());
    return *version;
  }
  void SlowDown() {
    failing_.During(blob::BlobOp::kLoad, [this] { return disk_.Read(); });
  }
  std::future<Source> Open(const Version& version) {
    auto opened = std::make_shared<std::promise<Source>>();
    transfers_->OpenGet({.object = version.blob.value, .image_bytes = version.image_bytes},
                        [opened](Source source) { opened->set_value(std::move(source)); });
    return opened->get_future();
  }
  static bool IsOpen(const std::future<Source>& opened) {
    return opened.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  SlowDisk disk_;
  TempDir dir_;
  std::unique_ptr<RotatingKeys> keys_ =
      *RotatingKeys::Open({.path = dir_.path() + "/ticket.key", .life_ms = 600'000});
  std::optional<Transfers> transfers_;
};

TEST_F(TransfersTest, ASmallImageIsOpenedBetweenThePartsOfLargeOnes) {
  const Version large = Publish(7, 2048), other = Publish(8, 2048), small = Publish(9, 16);
  ASSERT_GT(large.image_bytes, 3 * kPart);
  ASSERT_LT(small.image_bytes, kPart);
  SlowDown();
  std::future<Source> first = Open(large), second = Open(other);
  disk_.WaitUntilAsked(2);  // both threads read now
  std::future<Source> between = Open(small);
  disk_.Allow(3);
  EXPECT_THAT(between.get(), IsOk());
  EXPECT_FALSE(IsOpen(first));
  EXPECT_FALSE(IsOpen(second));
  disk_.Allow(kEverything);
  EXPECT_THAT(first.get(), IsOk());
  EXPECT_EQ(second.get()->bytes.size(), other.image_bytes);
}

TEST_F(TransfersTest, AnImageIsReadFromTheDiskOnceForAllWhoOpenIt) {
  const Version version = Publish(7, 2048);
  SlowDown();
  std::future<Source> first = Open(version);
  disk_.WaitUntilAsked(1);
  std::future<Source> second = Open(version);
  disk_.Allow(kEverything);
  const Source one = first.get(), two = second.get();
  ASSERT_THAT(one, IsOk());
  ASSERT_THAT(two, IsOk());
  EXPECT_EQ(one->bytes.data(), two->bytes.data());
  EXPECT_EQ(disk_.asked(), (version.image_bytes + kPart - 1) / kPart);
}

TEST_F(TransfersTest, ADiskThatGivesNothingBackIsToldAndAskedAgainByTheNext) {
  const Version version = Publish(7, 2048);
  failing_.Fail(blob::BlobOp::kLoad, Error(absl::StatusCode::kDataLoss, "DISK_FAILED", "gone"));
  EXPECT_THAT(Open(version).get(), IsError("DISK_FAILED"));
  failing_.Heal();
  EXPECT_THAT(Open(version).get(), IsOk());
}

}  // namespace
}  // namespace lorry::store
