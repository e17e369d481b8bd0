// What a follower keeps, fetches and gives up.
#include "services/engine_proxy/follower/agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lib/base/error.h"
#include "tests/unit/engine_proxy/driver/one_image_store.h"

namespace lorry::proxy {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPatienceMs = 30'000;

class AgentTest : public ::testing::Test, protected OneImageStore {
 protected:
  AgentTest() : OneImageStore("agent") { StartAgain(); }

  void StartAgain() {
    agent_.reset();
    agent_ = std::make_unique<Agent>(
        [this](const JournalId& journal) {
          ++opened_;
          return ImageShelf::Open(root_, journal, {});
        },
        *transports_,
        [this](const VersionKey&) -> absl::StatusOr<Manifest> {
          ++fetches_;
          if (store_away_) return Error(absl::StatusCode::kUnavailable, "", "refused");
          return ManifestNow();
        },
        [](const std::string&, double) {});
  }

  std::string PathOf(const std::string& name, const std::string& journal = "j1") {
    return root_ + "/versions/" + journal + "/" + name;
  }
  Placement Of(const std::string& name) {
    Placement placement{EngineName(name), PathOf(name), {}};
    placement.contents.digest = stored_.digest;
    placement.contents.traits.modules = {"q_proj"};
    return placement;
  }
  // The leader's next order: `paths` are directories of journal j1 by their names.
  FollowerOrder Next(const std::set<std::string>& names, const std::string& place = "") {
    FollowerOrder order{.journal = JournalId("j1"), .life = "a", .revision = ++revision_};
    for (const std::string& name : names) order.paths.insert(PathOf(name));
    if (place.empty()) return order;
    order.paths.insert(PathOf(place));
    order.place = Of(place);
    return order;
  }
  absl::StatusOr<bool> Follow(const FollowerOrder& order) {
    return agent_->Follow(order, SteadyClock().Now() + kPatienceMs);
  }
  bool Has(const std::string& name) { return fs::exists(PathOf(name)); }
  // Its last byte, under the follower's feet.
  void Change(const std::string& name) {
    std::fstream file(PathOf(name) + "/adapter_model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
  }

  uint64_t revision_ = 0;
  std::atomic<int> opened_{0}, fetches_{0};
  std::atomic<bool> store_away_{false};
  std::unique_ptr<Agent> agent_;
};

constexpr char kOne[] = "policy-v1-0123456789ab";
constexpr char kTwo[] = "policy-v2-0123456789ab";

TEST_F(AgentTest, FetchesWhatItIsAskedForOnce) {
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
  EXPECT_TRUE(fs::exists(PathOf(kOne) + "/adapter_model.safetensors"));
  EXPECT_TRUE(fs::exists(PathOf(kOne) + "/adapter_config.json"));
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
  EXPECT_EQ(fetches_, 1);
  EXPECT_EQ(agent_->directories(), 1u);
}

TEST_F(AgentTest, WhatNoOrderNamesGoes) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  ASSERT_TRUE(Follow(Next({kOne}, kTwo)).value());
  EXPECT_TRUE(Has(kOne));
  ASSERT_TRUE(Follow(Next({kTwo})).value());
  EXPECT_FALSE(Has(kOne));
  EXPECT_TRUE(Has(kTwo));
}

TEST_F(AgentTest, AnOrderThatComesLateTakesNothingAway) {
  const FollowerOrder early = Next({kOne});
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  ASSERT_TRUE(Follow(Next({kOne}, kTwo)).value());
  ASSERT_TRUE(Follow(early).value());
  EXPECT_TRUE(Has(kTwo)) << "the leader began it after that order";
}

TEST_F(AgentTest, AnOrderThatComesLateBringsNothingBack) {
  const FollowerOrder early = Next({}, kOne);
  ASSERT_TRUE(Follow(Next({}, kTwo)).value());
  EXPECT_EQ(ReasonOf(Follow(early).status()), "ORDER_STALE");
  EXPECT_FALSE(Has(kOne));
}

TEST_F(AgentTest, ALeaderThatWasStartedAgainIsHeardWhateverItCounts) {
  ASSERT_TRUE(Follow(Next({}, kTwo)).value());
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  FollowerOrder order = Next({kTwo});
  order.life = "b";
  order.revision = 1;
  ASSERT_TRUE(Follow(order).value());
  EXPECT_FALSE(Has(kOne));
}

TEST_F(AgentTest, AFollowerThatWasStartedAgainBelievesWhatItReads) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  StartAgain();
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
  EXPECT_EQ(fetches_, 1) << "its bytes were proven again, and not fetched";
}

TEST_F(AgentTest, BytesThatChangedMeanwhileAreFetchedAgain) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  StartAgain();
  Change(kOne);
  EXPECT_FALSE(Follow(Next({}, kOne)).value());
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
  EXPECT_EQ(fetches_, 2);
}

// A load that failed may have failed of the files of one node.
TEST_F(AgentTest, WhatTheLeaderDoubtsIsReadOnceMore) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  Change(kOne);
  EXPECT_TRUE(Follow(Next({}, kOne)).value()) << "nobody reads it without a reason";
  FollowerOrder order = Next({}, kOne);
  order.doubts = 1;
  EXPECT_FALSE(Follow(order).value());
  EXPECT_TRUE(Follow(order).value());
  EXPECT_EQ(fetches_, 2);
}

// Each life of the leader counts its doubts from one.
TEST_F(AgentTest, ALeaderThatWasStartedAgainDoubtsAnew) {
  FollowerOrder order = Next({}, kOne);
  order.doubts = 1;
  ASSERT_TRUE(Follow(order).value());
  Change(kOne);
  order.life = "b";
  order.revision = 1;
  EXPECT_FALSE(Follow(order).value());
  EXPECT_TRUE(Follow(order).value());
  EXPECT_EQ(fetches_, 2);
}

TEST_F(AgentTest, ADirectoryThatSomebodyRemovedIsFetchedAgain) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  fs::remove_all(PathOf(kOne));
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
  EXPECT_TRUE(Has(kOne));
  EXPECT_EQ(fetches_, 2);
}

TEST_F(AgentTest, AFailedFetchIsToldOnceAndTriedAgain) {
  store_away_ = true;
  const absl::Status first = Follow(Next({}, kOne)).status();
  EXPECT_TRUE(absl::IsUnavailable(first));
  EXPECT_EQ(ReasonOf(first), "FETCH_UNANSWERED");
  store_away_ = false;
  EXPECT_TRUE(Follow(Next({}, kOne)).value());
}

TEST_F(AgentTest, AFailureThatNobodyHeardIsToldBeforeItIsTriedAgain) {
  store_away_ = true;
  absl::StatusOr<bool> has = false;
  // None of these calls waits, so that the fetch fails between two of them.
  for (int i = 0; i < 1'000'000 && has.ok(); ++i) {
    ASSERT_FALSE(*has);
    has = agent_->Follow(Next({}, kOne), SteadyClock().Now());
  }
  EXPECT_EQ(ReasonOf(has.status()), "FETCH_UNANSWERED");
  EXPECT_EQ(fetches_, 1);
}

TEST_F(AgentTest, WrongBytesAreRefusedForGood) {
  FollowerOrder order = Next({}, kOne);
  order.place->contents.digest = Stored(1).digest;
  const absl::Status status = Follow(order).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_EQ(ReasonOf(status), "DIGEST_MISMATCH");
  EXPECT_FALSE(Has(kOne));
}

TEST_F(AgentTest, APathThatIsNotThisNodesIsRefused) {
  FollowerOrder order = Next({}, kOne);
  order.place->path = "/elsewhere/" + std::string(kOne);
  EXPECT_EQ(ReasonOf(Follow(order).status()), "IMAGE_DIR_DIFFERS");
  EXPECT_EQ(fetches_, 0);
}

TEST_F(AgentTest, ALeaderThatLostItsJournalKeepsWhatItsEngineMayRead) {
  ASSERT_TRUE(Follow(Next({}, kOne)).value());
  FollowerOrder order{.journal = JournalId("j2"), .life = "b", .revision = 1};
  order.paths = {PathOf(kOne)};
  ASSERT_TRUE(Follow(order).value());
  EXPECT_EQ(opened_, 2);
  EXPECT_TRUE(Has(kOne));
  order.revision = 2;
  order.paths = {};
  ASSERT_TRUE(Follow(order).value());
  EXPECT_FALSE(Has(kOne));
}

}  // namespace
}  // namespace lorry::proxy
