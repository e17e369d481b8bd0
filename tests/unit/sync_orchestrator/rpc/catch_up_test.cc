// Whoever asks for what was just stored, of an orchestrator whose watch of the store is behind.
#include "services/sync_orchestrator/rpc/catch_up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "lib/base/error.h"
#include "lib/kv/memory_store.h"
#include "lib/rpc/channel.h"
#include "lib/rpc/server.h"
#include "lib/rpc/status.h"
#include "services/sync_orchestrator/rpc/sync_service.h"
#include "tests/fuzz/orchestrator/scripted_store.h"
#include "tests/unit/sync_orchestrator/rpc/store_words.h"

namespace lorry::sync {
namespace {

using store::v1::WatchResponse;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

CatchUp::Mark MarkOf(uint64_t revision, const std::string& store = "s1") {
  CatchUp::Mark mark;
  mark.set_revision(revision);
  mark.set_store(store);
  return mark;
}

class CatchUpTest : public ::testing::Test {
 protected:
  CatchUpTest() {
    orchestrator_->Connect(link_, observer_);
    service_.emplace(gate_, *orchestrator_, link_, clock_, "test", "0");
    server_ = *rpc::Server::Start({}, gate_, {&*service_});
    stub_ = v1::SyncService::NewStub(*rpc::MakeChannel({.target = server_->address()}));
    orchestrator_->Start();
    link_.Start();
    WatchResponse whole = At(7, true);
    AddAdapter(whole, "math");
    store_.Say(whole);
    EXPECT_TRUE(Eventually([&] { return link_.connected(); }));
  }
  ~CatchUpTest() override {
    EXPECT_TRUE(server_->Shutdown().ok());
    link_.Stop();
    orchestrator_->Stop();
  }

  // The store has a version of `adapter` since revision 9, and the watch tells of it once somebody
  // has looked.
  void StoredUnheard(const std::string& adapter, const std::string& pool = "") {
    store_.AnswerLooks([this, adapter, pool] {
      if (++looks_ > 1) return MarkOf(9);
      WatchResponse message = At(9);
      AddAdapter(message, adapter);
      if (!pool.empty()) {
        auto& policy = *message.mutable_changes(0)->mutable_adapter_set()->mutable_policy();
        policy.add_pools()->set_pool(pool);
      }
      AddVersion(message, adapter, 4);
      store_.Say(message);
      return MarkOf(9);
    });
  }
  void Looks(std::optional<CatchUp::Mark> answer) {
    store_.AnswerLooks([this, answer] {
      ++looks_;
      return answer;
    });
  }

  absl::Status Lease(const std::string& selector) {
    v1::ResolveRequest request;
    request.set_selector(selector);
    request.set_holder("a-job");
    request.set_ttl_ms(60'000);
    grpc::ClientContext context;
    rpc::SetDeadlineIn(context, kPatienceMs);
    return rpc::FromGrpc(stub_->Resolve(&context, request, &leased_));
  }
  absl::Status Pin(const std::string& adapter, uint64_t number) {
    v1::SetOverrideRequest request;
    request.set_adapter(adapter);
    request.mutable_version()->set_adapter(adapter);
    request.mutable_version()->set_number(number);
    grpc::ClientContext context;
    rpc::SetDeadlineIn(context, kPatienceMs);
    v1::SetOverrideResponse response;
    return rpc::FromGrpc(stub_->SetOverride(&context, request, &response));
  }
  // The end of what is told of a version of the adapter's current run.
  v1::WatchSyncResponse WatchToItsEnd(const std::string& adapter, uint64_t number) {
    v1::WatchSyncRequest request;
    request.mutable_version()->set_adapter(adapter);
    request.mutable_version()->set_number(number);
    grpc::ClientContext context;
    rpc::SetDeadlineIn(context, kPatienceMs);
    const auto reader = stub_->WatchSync(&context, request);
    v1::WatchSyncResponse last;
    while (reader->Read(&last)) continue;
    watched_ = rpc::FromGrpc(reader->Finish());
    return last;
  }

  const SteadyClock clock_;
  const std::unique_ptr<kv::Store> kv_ = kv::MakeMemoryStore();
  SyncObserver observer_{{}};
  std::atomic<int> looks_ = 0;
  fuzz::ScriptedStore store_;
  // What is unknown is told soon.
  std::unique_ptr<Orchestrator> orchestrator_ =
      *Orchestrator::Create(*kv_, clock_, {.machine = {.lost_after_ms = 200}});
  StoreLink link_{*rpc::FreshChannel::Open({.target = store_.address()}), "orchestrator:test",
                  *orchestrator_};
  std::unique_ptr<rpc::Access> access_ = *rpc::Access::Open("", /*certificates=*/false);
  rpc::Gate gate_{*access_};
  std::optional<SyncService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<v1::SyncService::Stub> stub_;
  v1::ResolveResponse leased_;
  absl::Status watched_;
};

TEST_F(CatchUpTest, ALeaseOfWhatWasJustStoredWaitsForTheWatch) {
  StoredUnheard("math");
  EXPECT_THAT(ReasonOf(Lease("math@4")), AnyOf("", "HOLD_PENDING"));
  EXPECT_EQ(looks_, 1);
  EXPECT_THAT(ReasonOf(Lease("math@4")), AnyOf("", "HOLD_PENDING"));
  EXPECT_EQ(looks_, 1) << "what is known needs no look";
}

TEST_F(CatchUpTest, AnOverrideWaitsForIt) {
  StoredUnheard("math");
  EXPECT_EQ(Pin("math", 4), absl::OkStatus());
}

TEST_F(CatchUpTest, SoDoesAWatchOfAnAdapterThatIsNew) {
  StoredUnheard("code");
  EXPECT_EQ(WatchToItsEnd("code", 4).state(), v1::SYNC_STATE_STORED) << watched_;
}

TEST_F(CatchUpTest, AnAdapterThatIsNewIsAskedForInThePoolOfItsPolicy) {
  StoredUnheard("code", "train");
  EXPECT_THAT(ReasonOf(Lease("code@4")), AnyOf("", "HOLD_PENDING"));
  EXPECT_EQ((*orchestrator_->GetStatus(clock_.Now() + kPatienceMs))->leases.at(0).record.pool,
            PoolName("train"));
}

TEST_F(CatchUpTest, WhatTheStoreDoesNotHaveEitherIsUnknown) {
  Looks(MarkOf(7));
  const absl::Status unknown = Lease("math@4");
  EXPECT_EQ(ReasonOf(unknown), "UNKNOWN_VERSION");
  EXPECT_THAT(std::string(unknown.message()), Not(HasSubstr("not heard of")));
  EXPECT_EQ(ReasonOf(Pin("code", 4)), "UNKNOWN_ADAPTER");
  WatchToItsEnd("code", 4);
  EXPECT_EQ(ReasonOf(watched_), "UNKNOWN_ADAPTER");
  EXPECT_EQ(looks_, 3);
}

TEST_F(CatchUpTest, WithoutTheStoreTheAnswerSaysThatItCouldNotBeAsked) {
  const absl::Status unknown = Lease("math@4");
  EXPECT_EQ(ReasonOf(unknown), "UNKNOWN_VERSION");
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("could not be asked: not now"));
  WatchToItsEnd("code", 4);
  EXPECT_THAT(std::string(watched_.message()), HasSubstr("could not be asked: not now"));
  const v1::WatchSyncResponse end = WatchToItsEnd("math", 4);
  EXPECT_EQ(end.state(), v1::SYNC_STATE_FAILED);
  EXPECT_THAT(end.detail(), HasSubstr("could not be asked: not now"));
}

TEST_F(CatchUpTest, AWatchThatStaysBehindIsWaitedForNoLongerThanTheBound) {
  Looks(MarkOf(9));
  EXPECT_THAT(std::string(Lease("math@4").message()), HasSubstr("a second behind"));
  Looks(MarkOf(3, "s2"));
  EXPECT_THAT(std::string(Lease("math@4").message()), HasSubstr("a second behind"))
      << "what another store has is not known by revisions of this one";
}

TEST_F(CatchUpTest, OneLookIsForAllWhoCameBeforeItAndOnlySoManyMayWait) {
  std::atomic<bool> answers = false;
  store_.AnswerLooks([&] {
    ++looks_;
    Eventually([&] { return answers.load(); });
    return MarkOf(7);
  });
  std::atomic<int> done = 0;
  const auto ask = [&] {
    link_.AskToCatchUp([&](const absl::Status& status) { done += status.ok() ? 1 : 0; });
  };
  ask();
  EXPECT_TRUE(Eventually([&] { return looks_ == 1; }));
  for (int i = 1; i < CatchUp::kWaitersMax; ++i) ask();
  absl::Status refused;
  link_.AskToCatchUp([&](const absl::Status& status) { refused = status; });
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << "answered at once: " << refused;
  EXPECT_EQ(done, 0) << "who came during a look may know what it does not show";
  answers = true;
  EXPECT_TRUE(Eventually([&] { return done == CatchUp::kWaitersMax; }));
  EXPECT_EQ(looks_, 2);
}

TEST_F(CatchUpTest, WhoeverWaitsWhileItStopsIsAnswered) {
  Looks(MarkOf(9));
  std::atomic<int> refused = 0;
  const auto ask = [&] {
    link_.AskToCatchUp([&](const absl::Status& status) { refused += status.ok() ? 0 : 1; });
  };
  ask();
  EXPECT_TRUE(Eventually([&] { return looks_ == 1; }));
  link_.Stop();
  EXPECT_EQ(refused, 1);
  ask();
  EXPECT_EQ(refused, 2);
}

// The log alone said it before.
TEST_F(CatchUpTest, StatusSaysWhyTheStoreDoesNotHoldAVersion) {
  store_.RefuseHolds(rpc::ToGrpc(
      Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_HOLDS", "at most 5000 may be")));
  WatchResponse message = At(9);
  AddVersion(message, "math", 4);
  store_.Say(message);
  const auto shows = [&](const std::string& detail) {
    return Eventually([&] {
      grpc::ClientContext context;
      rpc::SetDeadlineIn(context, kPatienceMs);
      v1::GetStatusResponse status;
      EXPECT_TRUE(stub_->GetStatus(&context, {}, &status).ok());
      const v1::WatchSyncResponse& running = status.pools(0).running();
      return running.reason() == "HOLD_PENDING" && running.detail() == detail;
    });
  };
  EXPECT_TRUE(shows("TOO_MANY_HOLDS: at most 5000 may be"));
  store_.Take(false);
  store_.End(grpc::Status(grpc::StatusCode::UNAVAILABLE, "away"));
  EXPECT_TRUE(shows("the store is away"));
}

}  // namespace
}  // namespace lorry::sync
