#include "services/engine_proxy/rpc/follower_messages.h"

#include <gtest/gtest.h>

#include "lib/base/error.h"
#include "lib/fleet/engine_name.h"

namespace lorry::proxy {
namespace {

FollowerOrder AnOrder() {
  FollowerOrder order{
      .journal = JournalId("j1"), .life = "a", .revision = 7, .paths = {"/x", "/y"}, .doubts = 3};
  const DirectoryContents contents{.key = {AdapterName("policy"), RunId(2), VersionNumber(1)},
                                   .digest = Digest{"sha256-xxh3:00"},
                                   .traits = {.rank_max = 8, .modules = {"q_proj"}},
                                   .render = fleet::Render::kRsloraFolded};
  order.place = {fleet::MakeEngineName(contents.key, contents.digest, contents.render), "/x",
                 contents};
  return order;
}

TEST(FollowerMessages, AnOrderArrivesAsItWasSent) {
  const FollowerOrder sent = AnOrder();
  const absl::StatusOr<FollowerOrder> came = FromProto(ToProto(sent));
  ASSERT_TRUE(came.ok()) << came.status();
  EXPECT_EQ(came->journal, sent.journal);
  EXPECT_EQ(came->life, sent.life);
  EXPECT_EQ(came->revision, sent.revision);
  EXPECT_EQ(came->paths, sent.paths);
  EXPECT_EQ(came->doubts, sent.doubts);
  EXPECT_EQ(came->place->name, sent.place->name);
  EXPECT_EQ(came->place->path, sent.place->path);
  EXPECT_EQ(came->place->contents.key, sent.place->contents.key);
  EXPECT_EQ(came->place->contents.digest, sent.place->contents.digest);
  EXPECT_EQ(came->place->contents.traits, sent.place->contents.traits);
  EXPECT_EQ(came->place->contents.render, sent.place->contents.render);
}

TEST(FollowerMessages, WhatWouldLeaveTheImageDirectoryIsRefused) {
  for (const char* journal : {"", "..", "../j1", "a/b", "/etc"}) {
    engine::v1::FollowRequest request = ToProto(AnOrder());
    request.set_journal(journal);
    EXPECT_FALSE(FromProto(request).ok()) << journal;
  }
  for (const char* name : {"", "..", "../../etc", "policy-v1-0123456789ab/.."}) {
    engine::v1::FollowRequest request = ToProto(AnOrder());
    request.mutable_place()->set_engine_name(name);
    EXPECT_FALSE(FromProto(request).ok()) << name;
  }
}

TEST(FollowerMessages, ANameOfOtherContentsIsRefused) {
  const auto refused = [](const std::function<void(engine::v1::Placement&)>& change) {
    engine::v1::FollowRequest request = ToProto(AnOrder());
    change(*request.mutable_place());
    return !FromProto(request).ok();
  };
  EXPECT_TRUE(refused([](auto& p) { p.set_digest("sha256-xxh3:01"); }));
  EXPECT_TRUE(refused([](auto& p) { p.set_render(sync::v1::RENDER_PLAIN); }));
  EXPECT_TRUE(refused([](auto& p) { p.mutable_version()->set_run(3); }));
  EXPECT_TRUE(refused([](auto& p) { p.mutable_version()->set_number(2); }));
}

TEST(FollowerMessages, WhatIsMissingOrWithoutMeasureIsRefused) {
  const auto refused = [](const std::function<void(engine::v1::FollowRequest&)>& change) {
    engine::v1::FollowRequest request = ToProto(AnOrder());
    change(request);
    return !FromProto(request).ok();
  };
  EXPECT_TRUE(refused([](auto& r) { r.clear_life(); }));
  EXPECT_TRUE(refused([](auto& r) { r.set_life(std::string(1'000, 'a')); }));
  EXPECT_TRUE(refused([](auto& r) { r.mutable_place()->clear_digest(); }));
  EXPECT_TRUE(refused([](auto& r) { r.mutable_place()->clear_version(); }));
  EXPECT_TRUE(refused([](auto& r) {
    for (int i = 0; i < 10'001; ++i) r.add_paths(std::to_string(i));
  }));
}

}  // namespace
}  // namespace lorry::proxy
