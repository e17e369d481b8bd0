// How a door ends: what runs goes on, what waits is told, and whoever waits for quiet hears of it.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;
using fleet::RowMode;
using testing::DoorTest;
using testing::Eventually;
using testing::Gate;
using testing::Get;
using testing::JsonReply;
using testing::Message;
using testing::PolicyTable;
using testing::Post;
using testing::ReadMessage;
using testing::TableMaker;
using testing::Wire;

TEST_F(DoorTest, FinishesWhatRunsAndThenStops) {
  Gate draining;
  StartBefore([&](const Message&, Wire& wire) {
    EXPECT_TRUE(draining.Wait());
    return wire.Send(JsonReply("{}"));
  });
  Wire idle = Connect();
  Wire running = Connect();
  running.Send(Post("/generate", R"({"lora_path":"policy"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  std::thread stopper([&] { door_->Drain(10'000); });
  EXPECT_TRUE(idle.AtEnd());
  draining.Open();
  const Message reply = ReadMessage(running);
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("Connection"), "close");
  stopper.join();
}

TEST_F(DoorTest, AnswersConnectionsThatArriveAsItCloses) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  std::vector<Wire> arriving;
  for (int i = 0; i < 64; ++i) {
    arriving.push_back(Connect());
    arriving.back().Send(Post("/generate", R"({"lora_path":"policy"})"));
  }
  door_->Drain(10'000);
  for (Wire& wire : arriving) EXPECT_EQ(ReadMessage(wire).status(), 200);
}

// An operator drains while the process is told to end.
TEST_F(DoorTest, MayBeDrainedByTwoAtOnce) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) callers.emplace_back([&] { door_->Drain(1'000); });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(door_->Snapshot().live, 0u);
}

// Another engine may serve what would wait here. What comes on a connection that is open already
// is told the same.
TEST_F(DoorTest, ADrainAnswersWhatItHoldsAtOnce) {
  std::atomic<int> draining = 0;
  options_.on_draining = [&] { ++draining; };
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  TableMaker held = PolicyTable();
  held.raw().rules[0].hold_limit_ms = 600'000;
  held.Row("math", RowMode::kHeld).Loaded("math", 1);
  door_->SetTable(held.Make());
  const std::string below =
      Post("/generate", R"({"lora_path":"policy"})", "X-Lorry-Min-Version: 13\r\n");
  const std::string at_row = Post("/generate", R"({"lora_path":"math"})");
  std::vector<Wire> waiting;
  for (const std::string& request : {below, at_row}) {
    waiting.push_back(Connect());
    waiting.back().Send(request);
  }
  waiting.push_back(Connect());
  waiting.back().Send(at_row.substr(0, 20));
  ASSERT_TRUE(Eventually([&] { return door_->held() == 2; }));
  EXPECT_EQ(draining, 0);

  EXPECT_FALSE(door_->Quiesce(0)) << "somebody still sends";
  waiting.back().Send(at_row.substr(20));
  for (Wire& wire : waiting) {
    const Message reply = ReadMessage(wire);
    EXPECT_EQ(reply.status(), 503);
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "DRAINING");
    EXPECT_EQ(reply.Get("Retry-After"), "1");
    EXPECT_EQ(reply.Get("Connection"), "close");
    EXPECT_TRUE(wire.AtEnd());
  }
  EXPECT_TRUE(door_->Quiesce(10'000));
  EXPECT_EQ(draining, 1);
  EXPECT_TRUE(engine_->requests().empty());
}

// The machine opens its rows as soon as it hears that the door drains, before the door has told
// whoever waits.
TEST_F(DoorTest, ADrainAnswersWhatItHoldsAlsoWhereTheRowOpensForIt) {
  const auto table = [](RowMode mode) {
    return PolicyTable().Row("math", mode, 1).Loaded("math", 1).Make();
  };
  options_.on_draining = [&] { door_->SetTable(table(RowMode::kOpen)); };
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  door_->SetTable(table(RowMode::kHeld));
  Wire waits = Connect();
  waits.Send(Post("/generate", R"({"lora_path":"math"})"));
  ASSERT_TRUE(Eventually([&] { return door_->held() == 1; }));
  EXPECT_TRUE(door_->Quiesce(10'000));
  const Message reply = ReadMessage(waits);
  EXPECT_EQ(reply.status(), 503);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "DRAINING");
  EXPECT_TRUE(engine_->requests().empty());
}

// Who only waits for quiet ends nothing, and may wait again.
TEST_F(DoorTest, WaitsForQuietWithoutAbortingAnything) {
  Gate answering;
  StartBefore([&](const Message&, Wire& wire) {
    EXPECT_TRUE(answering.Wait());
    return wire.Send(JsonReply("{}"));
  });
  Wire running = Connect();
  running.Send(Post("/generate", R"({"lora_path":"policy"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  EXPECT_FALSE(door_->Quiesce(1));
  EXPECT_FALSE(door_->Quiesce(1));
  EXPECT_EQ(door_->Snapshot().live, 1u);
  answering.Open();
  EXPECT_TRUE(door_->Quiesce(10'000));
  EXPECT_EQ(ReadMessage(running).status(), 200);
}

// Nobody has to ask again for it to be known.
TEST_F(DoorTest, SaysOnceThatItIsClosedWhoeverWaits) {
  std::atomic<int> closed = 0;
  options_.on_closed = [&] { ++closed; };
  Gate answering;
  StartBefore([&](const Message&, Wire& wire) {
    EXPECT_TRUE(answering.Wait());
    return wire.Send(JsonReply("{}"));
  });
  { EXPECT_EQ(Ask(Get("/health")).status(), 200); }
  Wire running = Connect();
  running.Send(Post("/generate", R"({"lora_path":"policy"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  EXPECT_FALSE(door_->Quiesce(1));
  EXPECT_EQ(closed, 0) << "one request runs";
  answering.Open();
  EXPECT_EQ(ReadMessage(running).status(), 200);
  EXPECT_TRUE(Eventually([&] { return closed == 1; }));
  EXPECT_TRUE(door_->Quiesce(10'000));
  door_->Drain(0);
  EXPECT_EQ(closed, 1);
}

TEST_F(DoorTest, SaysThatItIsClosedWhereNobodyWasConnected) {
  std::atomic<int> closed = 0;
  options_.on_closed = [&] { ++closed; };
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  EXPECT_EQ(Ask(Get("/health")).status(), 200);
  ASSERT_TRUE(BecomesQuiet());
  EXPECT_EQ(closed, 0) << "it listens";
  EXPECT_TRUE(door_->Quiesce(10'000));
  EXPECT_EQ(closed, 1);
}

// SIGTERM does not wait for an operator who waits for quiet.
TEST_F(DoorTest, AnEndComesBeforeAWaitForQuiet) {
  StartBefore([](const Message&, Wire& wire) { return !wire.AtEnd(); }, EngineKind::kVllm);
  Wire running = Connect();
  running.Send(Post("/v1/completions", R"({"model":"policy"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  std::thread patient([&] { EXPECT_TRUE(door_->Quiesce(600'000)); });
  door_->Drain(1);
  patient.join();
  EXPECT_EQ(door_->Snapshot().live, 0u);
}

TEST_F(DoorTest, AbandonsWhatOutlivesTheGrace) {
  Gate closed;
  StartBefore(
      [&](const Message&, Wire& wire) {
        if (wire.AtEnd()) closed.Open();
        return false;
      },
      EngineKind::kVllm);
  Wire running = Connect();
  running.Send(Post("/v1/completions", R"({"model":"policy"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  door_->Drain(1);
  EXPECT_TRUE(closed.Wait());
  EXPECT_EQ(door_->Snapshot().live, 0u);
}

}  // namespace
}  // namespace lorry::door
