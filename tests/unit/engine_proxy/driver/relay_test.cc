#include "services/engine_proxy/driver/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lib/transfer/image_pool.h"
#include "lib/transfer/transport_set.h"
#include "services/engine_proxy/driver/image_shelf.h"
#include "tests/testing/temp_dir.h"

namespace lorry::proxy {
namespace {

using testing::IsEmpty;

const EngineName kName("policy-v1-0123456789ab");
const Digest kDigest{"sha256-xxh3:1"};
constexpr uint64_t kBytes = 100'000;

class RelayTest : public testing::Test {
 public:
  RelayTest()
      : pool_(transfer::ImagePool::Open({.directory = root_ / "pool"}).value()),
        image_(pool_->Acquire(kBytes).value()) {
    relay_.SetAddress("relay://here:1");
  }
  absl::StatusOr<transfer::GetSource> Open(const Digest& digest = kDigest) {
    absl::StatusOr<transfer::GetSource> opened = absl::UnknownError("no answer");
    relay_.OpenGet({.object = digest.value},
                   [&](absl::StatusOr<transfer::GetSource> source) { opened = std::move(source); });
    return opened;
  }
  std::shared_ptr<transfer::Arrivals> Serve() {
    return relay_.Serve(kName, kDigest, *image_, transfer::LeavesOf(image_->bytes())).value();
  }

  TempDir root_;
  std::unique_ptr<transfer::ImagePool> pool_;
  std::unique_ptr<transfer::ImageFile> image_;
  std::string joined_as_;
  absl::Status store_;
  ManualClock clock_;
  Relay relay_{
      [this](const VersionKey&, const std::string& address, const transfer::TicketKeys::Secret& key)
          -> absl::StatusOr<std::vector<transfer::Source>> {
        if (!store_.ok()) return store_;
        joined_as_ = address;
        transfer::TicketKeys minting;
        minting.Add(transfer::kRelayKeyId, key);
        auto ticket = minting.Mint({.ticket_id = "t",
                                    .object = kDigest.value,
                                    .image_bytes = kBytes,
                                    .expires_unix_ms = transfer::NowUnixMs() + 60'000});
        return std::vector<transfer::Source>{{"relay://other:2", *ticket}};
      },
      clock_};
};

TEST_F(RelayTest, PassesOnTheBytesThatAreFetchedAsTheyCome) {
  const auto arrivals = Serve();
  const auto source = Open();
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->bytes.size(), kBytes);
  EXPECT_FALSE(*source->arrivals->Has({0, kBytes}));
  std::ranges::fill(image_->writable(), std::byte{7});
  arrivals->Add({0, kBytes});
  EXPECT_TRUE(*source->arrivals->Has({0, kBytes}));
  EXPECT_TRUE(std::ranges::all_of(source->bytes, [](std::byte b) { return b == std::byte{7}; }));
}

// At a relay whose own network is slow, or that is given no time to run.
TEST_F(RelayTest, AReaderThatLagsBehindIsSentElsewhere) {
  Serve()->End(absl::OkStatus());
  const auto source = Open();
  ASSERT_TRUE(*source->arrivals->Has({0, 1}));
  clock_.Advance(9'000);
  EXPECT_TRUE(*source->arrivals->Has({1, 1})) << "a moment is nothing";
  clock_.Advance(9'000);
  EXPECT_TRUE(absl::IsUnavailable(source->arrivals->Has({2, 1}).status()));
  EXPECT_TRUE(*Open()->arrivals->Has({2, 1})) << "another one may be faster";
}

TEST_F(RelayTest, AReaderThatHasWhatIsHereWaitsForTheRest) {
  const auto arrivals = Serve();
  const auto source = Open();
  for (uint64_t at = 0; at < kBytes / 2; at += 1'000) {
    ASSERT_FALSE(*source->arrivals->Has({at, 1'000}));
    clock_.Advance(9'000);
    arrivals->Add({at, 1'000});
    ASSERT_TRUE(source->arrivals->Has({at, 1'000}).value_or(false)) << at;
    clock_.Advance(1'000);
  }
}

TEST_F(RelayTest, KnowsNothingButWhatItServes) {
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
  Serve();
  EXPECT_TRUE(absl::IsNotFound(Open(Digest{"sha256-xxh3:2"}).status()));
  relay_.Drop(kName);
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
}

// By an operator, to make room: reading what the file lost would end the process.
TEST_F(RelayTest, AnImageThatWasCutIsPassedOnToNobody) {
  Serve();
  std::filesystem::resize_file(image_->path(), kBytes - 1);
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
}

TEST_F(RelayTest, TheStoresTicketsOpenItAndAnotherRelaysDoNot) {
  const auto sources = relay_.Sources({});
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(joined_as_, "relay://here:1");
  EXPECT_TRUE(relay_.keys().Verify(sources[0].ticket, transfer::NowUnixMs()).ok());
  Relay other({}, clock_);
  EXPECT_FALSE(other.keys().Verify(sources[0].ticket, transfer::NowUnixMs()).ok());
}

TEST_F(RelayTest, WithoutAnAnswerOfTheStoreItIsReadFromAlone) {
  store_ = absl::UnimplementedError("an older store");
  EXPECT_THAT(relay_.Sources({}), IsEmpty());
}

// The next version must not be written where somebody reads this one.
TEST_F(RelayTest, AFileIsNotWrittenAnewWhileItIsRead) {
  Serve();
  auto source = Open();
  relay_.Drop(kName);
  pool_->Recycle(std::move(image_));
  EXPECT_EQ(pool_->counts().recycled, 0u);
  EXPECT_EQ(pool_->counts().dropped, 1u);
  EXPECT_EQ(source->bytes.size(), kBytes) << "and can still be read";
}

TEST_F(RelayTest, AFileIsWrittenAnewOnceNobodyReadsIt) {
  Serve();
  { auto source = Open(); }
  relay_.Drop(kName);
  pool_->Recycle(std::move(image_));
  EXPECT_EQ(pool_->counts().dropped, 0u);
}

}  // namespace
}  // namespace lorry::proxy
