// Calls that somebody else answers: by whom, how long they are waited for, and what ends them.
#include <gmock/gmock.h>
#include <poll.h>

#include <deque>

#include "lib/base/mutex.h"
#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door::testing {
namespace {

using ::testing::HasSubstr;

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
  // What came later on either thread was served.
  void ServesWhatCameBefore() {
    for (uint32_t i = 0; i < options_.threads; ++i) EXPECT_EQ(Ask(Get("/health")).status(), 200);
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

// The door ends what waits, and aborts by ids with its own key, before any engine judges the caller's.
TEST_F(CallTest, AbortsNeedTheEnginesKeyOrThatOfWhatTheyEnd) {
  Start();
  door_->SetEngineFacts({.control_authorization = "Bearer admin", .aborts_waiting = true});
  proxy::DoorTable held = PolicyTable().Make();
  held.rows[0].mode = fleet::RowMode::kHeld;
  door_->SetTable(held);
  const auto abort = [&](std::string_view body, std::string_view key) {
    return Ask(Post("/abort_request", body, "Authorization: Bearer " + std::string(key) + "\r\n"));
  };
  Wire first = Connect(), second = Connect();
  for (Wire* wire : {&first, &second}) {
    wire->Send(Post(
        "/generate",
        R"({"lora_path":"policy","rid":")" + std::string(wire == &first ? "one" : "two") + "\"}",
        "Authorization: Bearer client\r\n"));
  }
  EXPECT_TRUE(Eventually([&] { return door_->held() == 2; }));
  for (const char* body : {R"({"abort_all":true})", R"({"rid":"one"})"}) {
    const Message refused = abort(body, "other");
    EXPECT_EQ(refused.status(), 401) << body;
    EXPECT_EQ(ReasonOf(refused), "UNAUTHENTICATED") << body;
  }
  EXPECT_EQ(abort(R"({"abort_all":true})", "client").status(), 401) << "it ends those of others";
  EXPECT_EQ(abort(R"({"rid":"one"})", "client").status(), 200);
  EXPECT_NE(ReadMessage(first).body.find("abort"), std::string::npos);
  ServesWhatCameBefore();
  EXPECT_EQ(door_->held(), 1u);
  EXPECT_EQ(abort(R"({"rid":"two"})", "admin").status(), 200);
  EXPECT_NE(ReadMessage(second).body.find("abort"), std::string::npos);
  EXPECT_EQ(abort(R"({"abort_all":true})", "admin").status(), 200);
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

TEST_F(CallTest, ThatAsksToAbortAllIsReadAsTheEngineReadsIt) {
  Start();
  door_->SetEngineFacts({.aborts_waiting = false});
  const auto label = [&](const std::string& value) {
    return Ask(Post("/update_weight_version",
                    R"({"new_version":"1","abort_all_requests":)" + value + "}"));
  };
  for (const char* yes : {"true", "1", "1.0", "\"yes\"", "\"True\""}) {
    EXPECT_EQ(label(yes).status(), 403) << yes;
    EXPECT_EQ(Ask(Post("/abort_request", std::string(R"({"abort_all":)") + yes + "}")).status(),
              403)
        << yes;
  }
  EXPECT_TRUE(engine_->requests().empty());
  for (const char* no : {"false", "0", "\"no\""}) EXPECT_EQ(label(no).status(), 200) << no;
}

constexpr std::string_view kTensorsPath = "/load_lora_adapter_from_tensors";
constexpr size_t kAllRoom = 100'000;

std::string Tensors(size_t bytes, std::string_view fields = "") {
  return Post(kTensorsPath, std::string(bytes, 'A'), fields);
}
// The beginning of as many as there is room for; the rest does not come.
std::string BeginningOfTensors(std::string_view fields = "") {
  const std::string whole = Tensors(kAllRoom, fields);
  return whole.substr(0, whole.find("\r\n\r\n") + 5);
}

TEST_F(CallTest, TensorsHaveALimitOfTheirOwn) {
  options_.limits.body_bytes = 1'000;
  options_.limits.tensors_bytes = 100'000;
  Start();
  Wire wire = Connect();
  wire.Send(Tensors(100'000));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
  EXPECT_EQ(owner_.call(0).body.size(), 100'000u);
  const Message large = Ask(Tensors(100'001));
  EXPECT_EQ(large.status(), 413);
  EXPECT_THAT(large.body, HasSubstr("100001 bytes, more than 100000"));
  EXPECT_THAT(large.body, HasSubstr("--door-tensors-bytes"));
  const Message other = Ask(Post("/pause_generation", std::string(1'001, ' ')));
  EXPECT_EQ(other.status(), 413);
  EXPECT_THAT(other.body, HasSubstr("1001 bytes, more than 1000"));
  EXPECT_THAT(other.body, HasSubstr("--door-body-bytes"));
}

TEST_F(CallTest, TensorsThatFindNoRoomWaitForItAndHoldUpNothingElse) {
  options_.limits.body_bytes = options_.limits.all_bodies_bytes = 1'000;
  options_.limits.tensors_bytes = 100'000;
  Start();
  Wire first = Connect(), second = Connect();
  first.Send(Tensors(60'000));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
  second.Send(Tensors(60'000));
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy"})")).status(), 200);
  EXPECT_EQ(owner_.taken(), 1u);
  owner_.Answer(CallReply{200, "text/plain", "one"});
  EXPECT_EQ(ReadMessage(first).body, "one");
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 2; }));
  owner_.Answer(CallReply{200, "text/plain", "two"});
  EXPECT_EQ(ReadMessage(second).body, "two");
}

TEST_F(CallTest, TensorsThatWaitForRoomAreForgottenOnceTheirClientLeaves) {
  options_.limits.body_bytes = 1'000;
  options_.limits.tensors_bytes = 100'000;
  options_.limits.connections = 2;
  Start();
  Wire first = Connect(), leaves = Connect();
  first.Send(Tensors(60'000));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
  leaves.Send(Tensors(60'000));
  EXPECT_FALSE(Connect().ReadUntil("\r\n\r\n").empty()) << "there is no room for a third";
  leaves.Close();
  EXPECT_TRUE(Eventually([&] { return Ask(Get("/health")).status() == 200; }));
  EXPECT_EQ(owner_.taken(), 1u);
}

TEST_F(CallTest, TensorsThatWaitForRoomAreToldOfTheDoorsEnd) {
  options_.limits.body_bytes = 1'000;
  options_.limits.tensors_bytes = 100'000;
  Start();
  Wire first = Connect(), second = Connect();
  first.Send(Tensors(60'000));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
  second.Send(Tensors(60'000));
  EXPECT_EQ(Ask(Get("/health")).status(), 200);
  door_->Drain(60'000);
  EXPECT_EQ(ReasonOf(ReadMessage(second)), "DRAINING");
}

// A door that drains takes no call, so that it waits for none that is not whole.
TEST_F(CallTest, ADrainWaitsForNoTensorsThatAreStillToCome) {
  options_.limits.tensors_bytes = kAllRoom;
  Start();
  Wire stalls = Connect(), waits = Connect();
  stalls.Send(BeginningOfTensors("Expect: 100-continue\r\n"));
  EXPECT_THAT(stalls.ReadUntil("\r\n\r\n"), HasSubstr("100 Continue")) << "it has the room";
  waits.Send(Tensors(kAllRoom));
  ServesWhatCameBefore();
  EXPECT_TRUE(door_->Quiesce(10'000));
  EXPECT_EQ(ReasonOf(ReadMessage(stalls)), "DRAINING");
  EXPECT_EQ(ReasonOf(ReadMessage(waits)), "DRAINING");
  EXPECT_EQ(owner_.taken(), 0u);
}

TEST_F(CallTest, WhoLacksTheKeyTakesNoRoomForTensors) {
  options_.limits.tensors_bytes = kAllRoom;
  Start();
  door_->SetEngineFacts({.control_authorization = "Bearer secret"});
  Wire stalls = Connect();
  stalls.Send(BeginningOfTensors());
  const Message refused = ReadMessage(stalls);
  EXPECT_EQ(refused.status(), 401);
  EXPECT_EQ(refused.Get("Connection"), "close") << "nobody reads the rest of its body";
  Wire other = Connect();
  other.Send(Tensors(kAllRoom, "Authorization: Bearer secret\r\n"));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
}

TEST_F(CallTest, TensorsThatNobodyTakesAreRefusedByTheirHead) {
  const auto answer = [&](std::string_view fields) {
    Wire wire = Connect();
    wire.Send(BeginningOfTensors(fields));
    return ReadMessage(wire);
  };
  Start();
  EXPECT_EQ(answer("Content-Encoding: gzip\r\n").status(), 415);
  door_->SetTable(PolicyTable(fleet::EngineKind::kVllm).Make());
  const Message vllm = answer("");
  EXPECT_EQ(vllm.status(), 403);
  EXPECT_THAT(vllm.body, HasSubstr("/v1/load_lora_adapter"));
  door_->SetTable({});
  EXPECT_EQ(ReasonOf(answer("")), "ENGINE_UNREACHABLE");
  options_.on_call = nullptr;
  StartBefore(engine_->port());
  const Message closed = answer("");
  EXPECT_EQ(closed.status(), 403);
  EXPECT_THAT(closed.body, HasSubstr("--framework-calls=on"));
}

TEST_F(CallTest, TensorsCountAmongTheCallsWhileTheyWaitForRoom) {
  options_.limits.tensors_bytes = kAllRoom;
  options_.limits.calls = 2;
  Start();
  Wire first = Connect(), second = Connect();
  first.Send(Tensors(kAllRoom));
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 1; }));
  second.Send(Tensors(kAllRoom));
  ServesWhatCameBefore();
  const Message third = Ask(BeginningOfTensors());
  EXPECT_EQ(third.status(), 503);
  EXPECT_EQ(ReasonOf(third), "DOOR_FULL");
  owner_.Answer(CallReply{200, "text/plain", "one"});
  EXPECT_EQ(ReadMessage(first).body, "one");
  EXPECT_TRUE(Eventually([&] { return owner_.taken() == 2; }));
}

// Others wait for the room of all of it.
TEST_F(CallTest, TensorsMayNotComeSlowly) {
  options_.limits.tensors_bytes = kAllRoom;
  options_.limits.body_ms = 3'000;  // which each byte would begin anew
  Start();
  Wire wire = Connect();
  wire.Send(BeginningOfTensors());
  pollfd answered{wire.fd(), POLLIN, 0};
  EXPECT_TRUE(Eventually([&] { return !wire.Send("A") || ::poll(&answered, 1, 0) > 0; }));
  EXPECT_EQ(ReadMessage(wire).status(), 408);
  Wire other = Connect();
  other.Send(Tensors(kAllRoom));
  EXPECT_TRUE(Eventually([&] {
    wire.Send("A");
    return owner_.taken() == 1;
  })) << "though it still sends";
}

}  // namespace
}  // namespace lorry::door::testing
