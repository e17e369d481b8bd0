// What a leader asks of its followers, and when a fetch and a load wait for them.
#include "services/engine_proxy/driver/followers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lib/base/error.h"

namespace lorry::proxy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const Placement kPlacement{EngineName("policy-v1-0123456789ab"), "/images/v1", {}};
constexpr auto kNever = [] { return false; };

// Nodes that say what the test tells them to, and remember what they were asked.
struct Nodes {
  std::vector<std::vector<absl::StatusOr<bool>>> answers;  // by node; the last one stays
  std::vector<std::vector<FollowerOrder>> orders;
  std::set<std::string> shelf;
  std::unique_ptr<Followers> followers;

  using Says = std::vector<absl::StatusOr<bool>>;
  explicit Nodes(std::initializer_list<Says> says) : answers(says) {
    orders.resize(answers.size());
    std::vector<Follower> nodes;
    for (size_t i = 0; i < answers.size(); ++i) {
      nodes.push_back(
          {"node" + std::to_string(i) + ":1", [this, i](const FollowerOrder& order, int64_t) {
             orders[i].push_back(order);
             absl::StatusOr<bool> answer = answers[i].front();
             if (answers[i].size() > 1) answers[i].erase(answers[i].begin());
             return answer;
           }});
    }
    followers = std::make_unique<Followers>(std::move(nodes), JournalId("j1"), "life",
                                            [this] { return shelf; });
  }
};

absl::Status Silent() {
  return Error(absl::StatusCode::kUnavailable, "FOLLOWER_UNANSWERED", "connection refused");
}

TEST(Followers, AFetchIsOverOnceEveryNodeHasTheDirectory) {
  Nodes nodes({Nodes::Says{true}, Nodes::Says{false, false, true}});
  ASSERT_TRUE(nodes.followers->Begin(kPlacement).ok());
  ASSERT_TRUE(nodes.followers->Await(kPlacement, kNever).ok());
  EXPECT_EQ(nodes.orders[0].size(), 2u);
  EXPECT_EQ(nodes.orders[1].size(), 3u);
}

TEST(Followers, WhoTakesItsTimeIsNamedOnce) {
  Nodes nodes({Nodes::Says{true}, Nodes::Says{false, false, false, true}});
  std::vector<std::string> named;
  const auto waits = [&named](const std::string& whom) { named.push_back(whom); };
  ASSERT_TRUE(nodes.followers->Await(kPlacement, kNever, waits).ok());
  EXPECT_THAT(named, ElementsAre(HasSubstr("node1:1")));
}

TEST(Followers, AllBeginBeforeAnyIsWaitedFor) {
  Nodes nodes({Nodes::Says{false}, Nodes::Says{false}});
  ASSERT_TRUE(nodes.followers->Begin(kPlacement).ok());
  for (const auto& orders : nodes.orders) {
    ASSERT_EQ(orders.size(), 1u);
    EXPECT_EQ(orders[0].place->name, kPlacement.name);
  }
}

TEST(Followers, ANodeThatFailsEndsTheFetchAndIsNamed) {
  Nodes nodes({Nodes::Says{true},
               Nodes::Says{Error(absl::StatusCode::kResourceExhausted, "DISK_FULL", "no room")}});
  const absl::Status status = nodes.followers->Await(kPlacement, kNever);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), "DISK_FULL");
  EXPECT_THAT(std::string(status.message()), HasSubstr("node1:1"));
}

TEST(Followers, AFetchThatNobodyWantsAnyMoreIsNotWaitedFor) {
  Nodes nodes({Nodes::Says{false}});
  int asked = 0;
  const absl::Status status = nodes.followers->Await(kPlacement, [&asked] { return ++asked > 3; });
  EXPECT_TRUE(absl::IsCancelled(status));
  EXPECT_EQ(nodes.orders[0].size(), 3u);
}

TEST(Followers, OrdersNameTheShelfAndWhatIsBeingFetched) {
  Nodes nodes({Nodes::Says{true}});
  nodes.shelf = {"/images/v0"};
  ASSERT_TRUE(nodes.followers->Begin(kPlacement).ok());
  nodes.followers->Tell();
  EXPECT_THAT(nodes.orders[0][1].paths, UnorderedElementsAre("/images/v0", "/images/v1"));
  EXPECT_FALSE(nodes.orders[0][1].place.has_value());
  nodes.followers->End(kPlacement);
  nodes.followers->Tell();
  EXPECT_THAT(nodes.orders[0][2].paths, ElementsAre("/images/v0"));
  EXPECT_LT(nodes.orders[0][0].revision, nodes.orders[0][1].revision);
  EXPECT_LT(nodes.orders[0][1].revision, nodes.orders[0][2].revision);
}

TEST(Followers, ALoadWaitsForANodeThatLostTheDirectory) {
  Nodes nodes({Nodes::Says{true}, Nodes::Says{false, true}});
  EXPECT_EQ(ReasonOf(nodes.followers->Confirm(kPlacement)), "FOLLOWER_FETCHES");
  EXPECT_TRUE(nodes.followers->Confirm(kPlacement).ok());
}

TEST(Followers, ADirectoryThatIsDoubtedIsToBeProvenByEveryNode) {
  Nodes nodes({Nodes::Says{true}});
  nodes.shelf = {kPlacement.path};
  EXPECT_TRUE(nodes.followers->Confirm(kPlacement).ok());
  nodes.followers->Doubt(kPlacement.path);
  EXPECT_TRUE(nodes.followers->Confirm(kPlacement).ok());
  EXPECT_NE(nodes.orders[0][1].doubts, nodes.orders[0][0].doubts);
}

TEST(Followers, OneThatDoesNotAnswerIsNotWaitedForToTidyUp) {
  Nodes nodes({Nodes::Says{Silent(), true}, Nodes::Says{true}});
  EXPECT_EQ(nodes.followers->answering(), 2u);
  EXPECT_EQ(ReasonOf(nodes.followers->Confirm(kPlacement)), "FOLLOWER_UNANSWERED");
  EXPECT_EQ(nodes.followers->answering(), 1u);
  nodes.followers->Tell();
  EXPECT_EQ(nodes.orders[0].size(), 1u);
  EXPECT_EQ(nodes.orders[1].size(), 1u);
  EXPECT_TRUE(nodes.followers->Confirm(kPlacement).ok());
  EXPECT_EQ(nodes.followers->answering(), 2u);
}

TEST(Followers, AnErrorOfANodeThatAnswersIsNoSilence) {
  Nodes nodes({Nodes::Says{Error(absl::StatusCode::kUnavailable, "FETCH_UNANSWERED", "no store")}});
  EXPECT_FALSE(nodes.followers->Await(kPlacement, kNever).ok());
  EXPECT_EQ(nodes.followers->answering(), 1u);
}

TEST(Followers, WithoutNodesNothingIsAsked) {
  Nodes nodes(std::initializer_list<Nodes::Says>{});
  EXPECT_TRUE(nodes.followers->Begin(kPlacement).ok());
  EXPECT_TRUE(nodes.followers->Await(kPlacement, kNever).ok());
  EXPECT_TRUE(nodes.followers->Confirm(kPlacement).ok());
  nodes.followers->End(kPlacement);
  EXPECT_THAT(nodes.orders, IsEmpty());
}

}  // namespace
}  // namespace lorry::proxy
