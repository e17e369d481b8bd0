// Calls that somebody else answers: by whom, how long they are waited for, and what ends them.
#include <deque>

#include "lib/base/mutex.h"
#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door::testing {
namespace {

// Takes calls and keeps them until the test answers.
class Owner {
 public:
  CallOwner Take() {
    return [this](EngineCall call, CallTicket ticket) {
      ticket.OnLeft([this] { ++left_; });
      MutexLock lock(mutex_);
      calls_.push_back(std::move(call));
      tickets_.push_back(std::move(ticket));
    };
  }
  size_t taken() {
    MutexLock lock(mutex_);
    return calls_.size();
  }
  EngineCall call(size_t i) {
    MutexLock lock(mutex_);
    return calls_[i];
  }
  void Answer(CallAnswer answer) {
    std::optional<CallTicket> first;
    {
      MutexLock lock(mutex_);
      first.emplace(std::move(tickets_.front()));
      tickets_.pop_front();
    }
    first->Answer(std::move(answer));
  }
  void DropAll() {
    MutexLock lock(mutex_);
    tickets_.clear();
  }
  int left() const { return left_; }

 private:
  std::atomic<int> left_{0};
  Mutex mutex_;
  std::vector<EngineCall> calls_ LORRY_GUARDED_BY(mutex_);
  std::deque<CallTicket> tickets_ LORRY_GUARDED_BY(mutex_);
};

class CallTest : public DoorTest {
 protected:
  void Start() {
    options_.on_call = owner_.Take();
    StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  }
  // Sends one and waits until its owner has it.
  Wire Begin(std::string_view fields = "") {
    const size_t before = owner_.taken();
    Wire wire = Connect();
    wire.Send(Post("/pause_generation?a=1", R"({"mode":"abort"})", fields));
    EXPECT_TRUE(Eventually([&] { return owner_.taken() == before + 1; }));
    return wire;
  }
  static std::string ReasonOf(const Message& reply) { return reply.Get("X-Lorry-Reason"); }

  Owner owner_;  // outlives the door
};

TEST_F(CallTest, IsHandedOverWholeAndAnsweredLater) {
  Start();
  Wire wire = Begin();
  const EngineCall call = owner_.call(0);
  EXPECT_EQ(call.engine, fleet::EngineKind::kSglang);
  EXPECT_EQ(call.path, "/pause_generation");
  EXPECT_EQ(call.query, "?a=1");
  EXPECT_EQ(call.body, R"({"mode":"abort"})");
  EXPECT_FALSE(call.request_id.empty());
  owner_.Answer(CallReply{200, "text/plain", "paused"});
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("Content-Type"), "text/plain");
  EXPECT_EQ(reply.body, "paused");
  wire.Send(Get("/health"));
  EXPECT_EQ(ReadMessage(wire).status(), 200) << "the connection carries more";
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(CallTest, ARefusalHasTheEnginesShape) {
  Start();
  Wire wire = Begin();
  owner_.Answer(Refused{409, "PAUSE_CONFLICT", "continue it first"});
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 409);
  EXPECT_EQ(ReasonOf(reply), "PAUSE_CONFLICT");
  EXPECT_NE(reply.body.find("continue it first"), std::string::npos);
}

TEST_F(CallTest, WaitsNoLongerThanItsDeadline) {
  options_.limits.call_ms = 30;
  Start();
  Wire wire = Begin();
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 504);
  EXPECT_EQ(ReasonOf(reply), "CALL_TIMEOUT");
  EXPECT_TRUE(Eventually([&] { return owner_.left() == 1; }));
  owner_.Answer(CallReply{200, "text/plain", "too late"});
}

TEST_F(CallTest, ItsOwnerHearsThatTheClientHasLeft) {
  Start();
  {
    Wire wire = Begin();
    EXPECT_EQ(owner_.left(), 0);
  }
  EXPECT_TRUE(Eventually([&] { return owner_.left() == 1; }));
  owner_.Answer(CallReply{200, "text/plain", "for nobody"});
  Wire next = Begin();
  owner_.Answer(CallReply{200, "text/plain", "heard"});
  EXPECT_EQ(ReadMessage(next).body, "heard");
  EXPECT_EQ(owner_.left(), 1);
}

TEST_F(CallTest, ADrainEndsItAtOnce) {
  Start();
  Wire wire = Begin();
  EXPECT_TRUE(door_->Quiesce(10'000));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 503);
  EXPECT_EQ(ReasonOf(reply), "DRAINING");
  EXPECT_TRUE(wire.AtEnd());
  door_.reset();
  owner_.Answer(CallReply{200, "text/plain", "after the door"});
}

TEST_F(CallTest, OneThatItsOwnerDropsIsAnsweredAllTheSame) {
  Start();
  Wire wire = Begin();
  owner_.DropAll();
  EXPECT_EQ(ReasonOf(ReadMessage(wire)), "DRAINING");
}

TEST_F(CallTest, NoMoreWaitAtOnceThanTheirLimit) {
  options_.limits.calls = 2;
  Start();
  Wire first = Begin();
  Wire second = Begin();
  const Message third = Ask(Post("/pause_generation", "{}"));
  EXPECT_EQ(third.status(), 503);
  EXPECT_EQ(ReasonOf(third), "DOOR_FULL");
  owner_.Answer(CallReply{200, "text/plain", ""});
  EXPECT_EQ(ReadMessage(first).status(), 200);
  Wire next = Begin();
  EXPECT_EQ(owner_.taken(), 3u);
}

TEST_F(CallTest, NeedsTheEnginesOwnKey) {
  Start();
  door_->SetEngineFacts({.control_authorization = "Bearer secret"});
  for (const char* fields : {"", "Authorization: Bearer secreT\r\n", "Authorization: Bearer\r\n"}) {
    const Message reply = Ask(Post("/pause_generation", "{}", fields));
    EXPECT_EQ(reply.status(), 401) << fields;
    EXPECT_EQ(ReasonOf(reply), "UNAUTHENTICATED") << fields;
  }
  EXPECT_EQ(owner_.taken(), 0u);
  Wire wire = Begin("Authorization: Bearer secret\r\n");
  owner_.Answer(CallReply{200, "text/plain", ""});
  EXPECT_EQ(ReadMessage(wire).status(), 200);
}

TEST_F(CallTest, WithoutAnOwnerItIsRefusedNamingTheFlag) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  for (const char* path : {"/pause_generation", "/flush_cache"}) {
    const Message reply = Ask(Post(path, "{}"));
    EXPECT_EQ(reply.status(), 403) << path;
    EXPECT_NE(reply.body.find("--framework-calls=on"), std::string::npos) << path;
  }
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(CallTest, WhatNeedsNobodysStateIsPassedToTheEngine) {
  Start();
  door_->SetEngineFacts({.aborts_waiting = true});
  EXPECT_EQ(Ask(Post("/flush_cache?timeout=1", "")).status(), 200);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"abort_all":true})")).status(), 200);
  ASSERT_EQ(engine_->requests().size(), 2u);
  EXPECT_EQ(engine_->requests()[0].path(), "/flush_cache?timeout=1");
  EXPECT_EQ(engine_->requests()[1].body, R"({"abort_all":true})");
  door_->SetEngineFacts({.aborts_waiting = false});
  EXPECT_EQ(Ask(Post("/abort_request", R"({"abort_all":true})")).status(), 403);
  EXPECT_EQ(owner_.taken(), 0u);
}

}  // namespace
}  // namespace lorry::door::testing
