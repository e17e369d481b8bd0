#include "services/adapter_store/images/fan_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace lorry::store {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const Digest kImage{"sha256-xxh3:1"}, kOther{"sha256-xxh3:2"};

class FanOutTest : public testing::Test {
 public:
  // Whom the n-th may read from, by their numbers; the store is none of them.
  std::vector<int> Join(int n, const Digest& image = kImage) {
    OfferedRelay relay{.address = "relay://host:" + std::to_string(n), .key = {}};
    relay.key.fill(static_cast<uint8_t>(n));
    std::vector<int> sources;
    for (const OfferedRelay& source : fan_out_->Join(image, relay)) {
      const int number = std::stoi(source.address.substr(source.address.rfind(':') + 1));
      EXPECT_EQ(source.key[0], static_cast<uint8_t>(number)) << "each with its own key";
      sources.push_back(number);
    }
    return sources;
  }
  void Remake(FanOutOptions options) { fan_out_ = std::make_unique<FanOut>(clock_, options); }

  ManualClock clock_{1'000};
  std::unique_ptr<FanOut> fan_out_ = std::make_unique<FanOut>(
      clock_, FanOutOptions{.width = 2, .life_ms = 10'000, .relays_max = 4'200});
};

TEST_F(FanOutTest, TheFirstReadFromTheStoreAndTheNextFromThem) {
  EXPECT_THAT(Join(0), IsEmpty());
  EXPECT_THAT(Join(1), IsEmpty());
  EXPECT_THAT(Join(2), ElementsAre(0));
  EXPECT_THAT(Join(3), ElementsAre(0));
  EXPECT_THAT(Join(4), ElementsAre(1));
  EXPECT_THAT(Join(5), ElementsAre(1));
  EXPECT_THAT(Join(6), ElementsAre(2, 0)) << "and from its source, where it is gone";
}

TEST_F(FanOutTest, NobodyHasMoreReadersThanTheWidthNorIsFarFromTheStore) {
  constexpr int kHosts = 2 + 4 + 8 + 16 + 32 + 64 + 128 + 256 + 512 + 1'024 + 2'048;
  std::map<int, int> readers, depth;
  int of_store = 0;
  for (int n = 0; n < kHosts; ++n) {
    SCOPED_TRACE(n);
    const std::vector<int> sources = Join(n);
    if (sources.empty()) {
      ++of_store;
      depth[n] = 1;
    } else {
      ASSERT_LT(sources[0], n) << "nobody reads from one who may read from him";
      EXPECT_LE(++readers[sources[0]], 2);
      depth[n] = depth[sources[0]] + 1;
      EXPECT_LE(depth[n], 11) << "two, then four, and so on";
    }
  }
  EXPECT_EQ(of_store, 2);
}

TEST_F(FanOutTest, WhoeverJoinsAgainWasLetDownAndReadsFromTheStore) {
  for (int n = 0; n < 6; ++n) Join(n);
  EXPECT_THAT(Join(2), IsEmpty());
  EXPECT_THAT(Join(6), ElementsAre(2, 0)) << "and is read from all the same";
}

TEST_F(FanOutTest, ARestartedRelayIsReadFromWithItsNewKey) {
  Join(0), Join(1);
  OfferedRelay again{.address = "relay://host:0", .key = {}};
  again.key.fill(77);
  fan_out_->Join(kImage, again);
  const auto sources = fan_out_->Join(kImage, {.address = "relay://host:2", .key = {}});
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].key[0], 77);
}

TEST_F(FanOutTest, EachImageHasATreeOfItsOwn) {
  Join(0), Join(1);
  EXPECT_THAT(Join(2, kOther), IsEmpty());
  EXPECT_THAT(Join(2), ElementsAre(0));
}

TEST_F(FanOutTest, NobodyIsSentToOneThatJoinedLongAgo) {
  Join(0), Join(1);
  clock_.Advance(6'000);
  EXPECT_THAT(Join(2), ElementsAre(0));
  clock_.Advance(6'000);
  EXPECT_THAT(Join(3), ElementsAre(2, 0)) << "0 and 1 joined 12 s ago, 2 joined 6 s ago";
  clock_.Advance(10'000);
  EXPECT_THAT(Join(4), IsEmpty()) << "another burst";
  EXPECT_THAT(Join(5), IsEmpty());
  EXPECT_THAT(Join(6), ElementsAre(4));
}

TEST_F(FanOutTest, TheTablesAreBoundedAndEmptyThemselves) {
  Remake({.width = 2, .life_ms = 10'000, .relays_max = 3});
  Join(0), Join(1, kOther), Join(2);
  EXPECT_THAT(Join(3), IsEmpty());
  EXPECT_THAT(Join(4), IsEmpty()) << "the store alone, as nobody else is remembered";
  clock_.Advance(10'000);
  Join(5), Join(6);
  EXPECT_THAT(Join(7), ElementsAre(5)) << "room again";
}

TEST_F(FanOutTest, AWidthOfNoneIsTheStoreForAll) {
  Remake({.width = 0});
  for (int n = 0; n < 5; ++n) EXPECT_THAT(Join(n), IsEmpty());
}

}  // namespace
}  // namespace lorry::store
