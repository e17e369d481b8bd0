// What the orchestrator hears of the store over broken watches, against a store that says anything.
#include "services/sync_orchestrator/rpc/store_link.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lib/metrics/registry.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/reconnecting_stream.h"
#include "services/sync_orchestrator/rpc/gauges.h"
#include "tests/fuzz/orchestrator/scripted_store.h"
#include "tests/testing/captured_log.h"
#include "tests/testing/refusing_kv.h"
#include "tests/unit/sync_orchestrator/rpc/store_words.h"

namespace lorry::sync {
namespace {

using store::v1::WatchResponse;

const grpc::Status kAway(grpc::StatusCode::UNAVAILABLE, "restarting");

class StoreLinkTest : public ::testing::Test {
 protected:
  StoreLinkTest() : orchestrator_(*Orchestrator::Create(disk_, clock_, {})) {
    link_ = std::make_unique<StoreLink>(*rpc::FreshChannel::Open({.target = store_.address()}),
                                        "orchestrator:test", *orchestrator_);
    orchestrator_->Connect(*link_, observer_);
    orchestrator_->Start();
    link_->Start();
  }
  ~StoreLinkTest() override {
    link_->Stop();
    orchestrator_->Stop();
  }
  // The watch of this number, from 1.
  store::v1::WatchRequest Watch(size_t number) {
    EXPECT_TRUE(Eventually([&] { return store_.watches().size() >= number; })) << number;
    return store_.watches().at(number - 1);
  }
  bool Knows(const std::string& adapter) { return link_->Find(AdapterName(adapter)).has_value(); }
  // Why nothing of the first pool is synced.
  std::string WaitsFor() {
    return (*orchestrator_->GetStatus(clock_.Now() + kPatienceMs))->pools.at(0).waits_for;
  }
  // What was said is taken in by the link, and by the machine when it answers.
  Status Heard() {
    WatchResponse last = At(++last_);
    const std::string name = "z" + std::to_string(last_);
    AddAdapter(last, name);
    store_.Say(last);
    EXPECT_TRUE(Eventually([&] { return Knows(name); }));
    return **orchestrator_->GetStatus(clock_.Now() + kPatienceMs);
  }

  // How often a line of the log says so. Ends the link, so that nobody logs meanwhile.
  int Said(const std::string& words) {
    link_->Stop();
    const std::string text = log_.text();
    int lines = 0;
    for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++lines;
    return lines;
  }

  const CapturedLog log_;
  const SteadyClock clock_;
  RefusingStore disk_;
  metrics::Registry registry_{{.service = "sync-orchestrator", .version = "0"}};
  ServingMetrics serving_{registry_};
  SyncObserver observer_{PhaseMetrics(registry_, serving_)};
  fuzz::ScriptedStore store_;
  std::unique_ptr<Orchestrator> orchestrator_;
  std::unique_ptr<StoreLink> link_;
  uint64_t last_ = 1'000;
};

TEST_F(StoreLinkTest, AWatchGoesOnFromWhatWasHeardOfThatStore) {
  EXPECT_EQ(Watch(1).from_revision(), 0u);
  EXPECT_EQ(Watch(1).holder(), "orchestrator:test");
  store_.Say(At(7, true));
  WatchResponse more = At(9);
  AddAdapter(more, "math");
  AddVersion(more, "math", 4);
  store_.Say(more);
  store_.End(kAway);
  EXPECT_EQ(Watch(2).from_revision(), 9u);
  EXPECT_EQ(Watch(2).store(), "s1");
  EXPECT_TRUE(Knows("math")) << "what was heard stays";
  EXPECT_EQ(link_->Newest().at(AdapterName("math")).number, VersionNumber(4));
  EXPECT_EQ(Heard().pools.at(0).adapter, AdapterName("math"));
}

// Its metric says that it is cut off, and sends the operator to the log.
TEST_F(StoreLinkTest, WhyItIsCutOffIsSaidOnceForEachReason) {
  const grpc::Status refused(grpc::StatusCode::PERMISSION_DENIED, "no such role");
  Watch(1);
  store_.Say(At(7, true));
  Heard();
  size_t watches = 1;
  for (const grpc::Status& why : {kAway, kAway, refused, kAway, refused}) {
    store_.End(why);
    Watch(++watches);
  }
  Heard();
  store_.End(kAway);
  Watch(++watches);
  EXPECT_EQ(Said("UNAVAILABLE: restarting"), 2) << "once before it was back, and once after";
  EXPECT_EQ(Said("PERMISSION_DENIED: no such role"), 1);
  EXPECT_EQ(Said("the store is followed"), 1);
}

TEST_F(StoreLinkTest, WhileTheMailboxIsFullTheWatchBeginsAgainWhereItWas) {
  Watch(1);
  disk_.refuses = true;
  WatchResponse whole = At(1, true);
  AddAdapter(whole, "math");
  AddVersion(whole, "math", 1);
  store_.Say(whole);
  constexpr uint64_t kFacts = 10'000;
  const auto say = [&](uint64_t number) {
    WatchResponse fact = At(number);
    AddVersion(fact, "math", number);
    store_.Say(fact);
  };
  for (uint64_t number = 2; number <= kFacts; ++number) say(number);
  const uint64_t taken = Watch(2).from_revision();
  EXPECT_GT(taken, 1u);
  EXPECT_LT(taken, kFacts);
  say(kFacts + 1);
  EXPECT_EQ(Watch(3).from_revision(), taken) << "there is still no room";
  disk_.refuses = false;
  // A watch that ends still takes words, and drops them.
  last_ = 2 * kFacts;
  EXPECT_TRUE(Eventually([&] {
    say(++last_);
    return link_->Newest().at(AdapterName("math")).number.value > kFacts;
  }));
  EXPECT_EQ(Heard().pools.at(0).adapter, AdapterName("math"));
}

// It may be full for as long as the disk is, and each watch has the store read what was missed.
TEST_F(StoreLinkTest, WhileTheMailboxIsFullItAsksTheStoreLessAndLess) {
  Watch(1);
  disk_.refuses = true;
  store_.Say(At(1, true));
  constexpr uint64_t kFacts = 10'000;
  const auto say = [](fuzz::ScriptedStore& store, uint64_t number) {
    WatchResponse fact = At(number);
    AddVersion(fact, "math", number);
    store.Say(fact);
  };
  for (uint64_t number = 2; number <= kFacts; ++number) say(store_, number);
  Watch(2);
  // Somebody who dials anew after each word, of which none is in vain.
  fuzz::ScriptedStore other_store;
  const auto stub =
      store::v1::StoreService::NewStub(*rpc::MakeChannel({.target = other_store.address()}));
  const store::v1::WatchRequest request;
  rpc::ReconnectingReader<WatchResponse> other(
      {.start = [&](auto* context,
                    auto* reactor) { stub->async()->Watch(context, &request, reactor); },
       .on_message = [&](const WatchResponse&) { other.Redial(); }});
  other.Start();
  const size_t before = store_.watches().size();
  uint64_t number = kFacts;
  EXPECT_TRUE(Eventually([&] {
    say(store_, ++number);
    say(other_store, number);
    return other_store.watches().size() >= 12;
  }));
  EXPECT_LT(store_.watches().size() - before, 8u);
}

TEST_F(StoreLinkTest, APresentStateThatWasCutShortBeginsAgain) {
  WatchResponse part = At(7);
  AddAdapter(part, "gone");
  Watch(1);
  store_.Say(part);
  EXPECT_TRUE(Eventually([&] { return Knows("gone"); }));
  EXPECT_FALSE(link_->connected());
  EXPECT_EQ((*orchestrator_->GetStatus(clock_.Now() + kPatienceMs))->footing, Footing::kUnread);
  store_.End(kAway);
  EXPECT_EQ(Watch(2).from_revision(), 0u);
  store_.Say(At(8, true));
  EXPECT_EQ(Heard().footing, Footing::kSettled);
  EXPECT_TRUE(link_->connected());
  EXPECT_FALSE(Knows("gone"));
}

TEST_F(StoreLinkTest, AnotherStoreIsReadFromTheBeginning) {
  WatchResponse whole = At(7, true);
  AddAdapter(whole, "gone");
  Watch(1);
  store_.Say(whole);
  store_.End(grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "another store"));
  EXPECT_EQ(Watch(2).from_revision(), 0u);
  EXPECT_FALSE(link_->connected());
  WatchResponse part = At(3);
  AddAdapter(part, "part");
  store_.Say(part);
  EXPECT_TRUE(Eventually([&] { return Knows("part"); }));
  const Status status = **orchestrator_->GetStatus(clock_.Now() + kPatienceMs);
  ASSERT_EQ(status.pools.size(), 1u) << "the machine is told of whole states alone";
  EXPECT_EQ(status.pools[0].adapter, AdapterName("gone"));
  store_.Say(At(3, true));
  EXPECT_TRUE(Eventually([&] { return link_->connected(); }));
  EXPECT_FALSE(Knows("gone"));
}

TEST_F(StoreLinkTest, AnAdapterThatIsArchivedOrDeletedIsForgotten) {
  WatchResponse whole = At(7, true);
  AddAdapter(whole, "kept");
  AddAdapter(whole, "archived");
  AddAdapter(whole, "deleted");
  Watch(1);
  store_.Say(whole);
  WatchResponse more = At(8);
  AddAdapter(more, "archived");
  more.mutable_changes(0)->mutable_adapter_set()->set_archived(true);
  more.add_changes()->set_adapter_deleted("deleted");
  store_.Say(more);
  Heard();
  EXPECT_TRUE(Knows("kept"));
  EXPECT_FALSE(Knows("archived"));
  EXPECT_FALSE(Knows("deleted"));
}

// A set may be accepted after the store has looked up what it remembers, and before it says so.
TEST_F(StoreLinkTest, WhatTheStoreAcceptedSinceTheWatchBeganIsLaterThanWhatThatSays) {
  Watch(1);
  store_.Take(false);
  WatchResponse whole = At(7, true);
  AddAdapter(whole, "math");
  AddVersion(whole, "math", 1);
  store_.Say(whole);
  EXPECT_TRUE(Eventually([&] { return !store_.holds().empty(); }));
  store_.End(kAway);
  Watch(2);
  store_.Take(true);
  EXPECT_TRUE(Eventually([&] { return WaitsFor() != "HOLD_PENDING"; })) << "it is sent again";

  store_.Say(At(7, true));
  EXPECT_EQ(Heard().footing, Footing::kSettled);
  WatchResponse earlier = At(7, true);
  earlier.mutable_remembered()->set_incarnation(store_.holds().back().incarnation());
  store_.Say(earlier);
  EXPECT_EQ(Heard().footing, Footing::kSettled);

  store_.End(kAway);
  Watch(3);
  store_.Say(earlier);
  EXPECT_EQ(Heard().footing, Footing::kStoreLost) << "that watch began after it was accepted";
}

TEST_F(StoreLinkTest, SoIsWhatItAcceptedBeforeTheLinkHeardThatTheWatchIsOpen) {
  Watch(1);
  store_.Take(false);
  WatchResponse whole = At(7, true);
  AddAdapter(whole, "math");
  AddVersion(whole, "math", 1);
  store_.Say(whole);
  EXPECT_TRUE(Eventually([&] { return !store_.holds().empty(); }));
  store_.OpenLate();
  store_.End(kAway);
  Watch(2);
  store_.Take(true);
  EXPECT_TRUE(Eventually([&] { return WaitsFor() != "HOLD_PENDING"; })) << "it is sent again";
  store_.Say(At(7, true));
  EXPECT_EQ(Heard().footing, Footing::kSettled);
}

}  // namespace
}  // namespace lorry::sync
