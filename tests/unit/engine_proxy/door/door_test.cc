// The door from outside: what a client and an engine see of it.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;
using fleet::RowMode;
using testing::Chunk;
using testing::DoorTest;
using testing::Eventually;
using testing::Gate;
using testing::Get;
using testing::JsonReply;
using testing::Message;
using testing::NameOf;
using testing::PolicyTable;
using testing::Post;
using testing::ReadMessage;
using testing::StreamHead;
using testing::TableMaker;
using testing::Wire;

TEST_F(DoorTest, RewritesOneReferenceAndSaysWhatProducedTheReply) {
  StartBefore([&](const Message&, Wire& wire) {
    EXPECT_EQ(InFlight(12), 1u);
    return wire.Send(JsonReply(R"({"text":"x","logprob":-0.10})"));
  });
  const Message reply = Ask(Post("/generate?a=b", R"({"text":"a","lora_path":"policy"})",
                                 "X-Client: 7\r\nConnection: x-hop\r\nX-Hop: 1\r\n"));
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.body, R"({"text":"x","logprob":-0.10})");
  EXPECT_EQ(reply.Get("X-Lorry-Adapter"), "policy");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  EXPECT_EQ(reply.Get("X-Lorry-Run"), "1");
  EXPECT_EQ(reply.Get("X-Lorry-Epoch"), "7");
  EXPECT_EQ(reply.Get("X-Lorry-Lag"), "0");
  EXPECT_EQ(reply.Get("X-Lorry-Digest"), "sha256-xxh3:" + NameOf("policy", 12).value);
  const std::string id = reply.Get("X-Lorry-Request-Id");
  EXPECT_EQ(id.size(), 32u);
  const Message seen = engine_->requests().at(0);
  EXPECT_EQ(seen.path(), "/generate?a=b");
  EXPECT_EQ(seen.body, R"({"rid":")" + id + R"(","text":"a","lora_path":")" +
                           NameOf("policy", 12).value + R"("})");
  EXPECT_EQ(seen.Get("X-Client"), "7");
  EXPECT_EQ(seen.Get("X-Hop"), "");
  const Message named = Ask(Post("/generate", R"({"text":"a","lora_path":"policy-v12"})"));
  EXPECT_EQ(named.Get("X-Lorry-Version") + " " + named.Get("X-Lorry-Epoch"), "12 0");
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, PassesAStreamOnPieceByPiece) {
  Gate first_seen;
  StartBefore([&](const Message&, Wire& wire) {
    wire.Send(StreamHead() + Chunk("data: 1\n\n"));
    EXPECT_TRUE(first_seen.Wait());
    return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(Post("/v1/completions", R"({"model":"policy@11","prompt":"a","stream":true})"));
  const std::string head = wire.ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("X-Accel-Buffering: no\r\n"), std::string::npos);
  EXPECT_NE(head.find("X-Lorry-Version: 11\r\n"), std::string::npos);
  wire.ReadUntil("data: 1\n\n");
  EXPECT_EQ(InFlight(11), 1u);
  first_seen.Open();
  wire.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, ClosesTheEnginesConnectionWhenAVllmClientLeaves) {
  Gate closed;
  StartBefore(
      [&](const Message&, Wire& wire) {
        wire.Send(StreamHead() + Chunk("data: 1\n\n"));
        if (wire.AtEnd()) closed.Open();
        return false;
      },
      EngineKind::kVllm);
  {
    Wire wire = Connect();
    wire.Send(Post("/v1/completions", R"({"model":"policy","stream":true})"));
    wire.ReadUntil("data: 1\n\n");
  }
  EXPECT_TRUE(closed.Wait());
  EXPECT_TRUE(BecomesQuiet());
}

// SGLang forgets a request whose connection breaks: it is aborted by id and read to the end, and
// counts until then.
TEST_F(DoorTest, AbortsByIdAndReadsOnWhenASglangClientLeaves) {
  Gate aborted;
  Gate counted;
  std::string aborted_body;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      aborted_body = request.body;
      aborted.Open();
      return wire.Send(JsonReply(""));
    }
    wire.Send(StreamHead() + Chunk("data: 1\n\n"));
    EXPECT_TRUE(aborted.Wait());
    EXPECT_EQ(InFlight(12), 1u);
    counted.Open();
    return wire.Send(Chunk("data: abort\n\n") + Chunk(""));
  });
  std::string id;
  {
    Wire wire = Connect();
    wire.Send(Post("/generate", R"({"text":"a","lora_path":"policy","stream":true})"));
    const std::string head = wire.ReadUntil("data: 1\n\n");
    id = head.substr(head.find("X-Lorry-Request-Id: ") + 20, 32);
  }
  EXPECT_TRUE(counted.Wait());
  EXPECT_EQ(aborted_body, R"({"rid":")" + id + R"("})");
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(Eventually([&] { return door_->Explain(id).has_value(); }));
  EXPECT_EQ(door_->Explain(id)->reason, "CLIENT_GONE");
}

TEST_F(DoorTest, AbortsASglangRequestOnlyAfterItsFirstToken) {
  Gate left;
  Gate aborted;
  std::atomic<bool> token_sent{false};
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      EXPECT_TRUE(token_sent);
      aborted.Open();
      return wire.Send(JsonReply(""));
    }
    EXPECT_TRUE(left.Wait());
    token_sent = true;
    wire.Send(StreamHead() + Chunk("data: 1\n\n"));
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(Chunk(""));
  });
  {
    Wire wire = Connect();
    wire.Send(Post("/generate", R"({"text":"a","lora_path":"policy","stream":true})"));
    EXPECT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
    wire.HalfClose();
    EXPECT_TRUE(wire.AtEnd()) << "a half-closed client has left";
  }
  EXPECT_EQ(InFlight(12), 1u);
  left.Open();
  EXPECT_TRUE(aborted.Wait());
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, HoldsRequestsUntilTheRowOpens) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  TableMaker held = PolicyTable();
  held.raw().rows[0].mode = RowMode::kHeld;
  held.raw().revision = Revision(2);
  door_->SetTable(held.Make());
  EXPECT_EQ(door_->Snapshot().revision, Revision(2));
  Wire waiting = Connect();
  waiting.Send(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy@11"})")).Get("X-Lorry-Version"), "11")
      << "explicit versions are outside of the barrier";
  EXPECT_EQ(Ask(Get("/health")).status(), 200);
  EXPECT_EQ(engine_->requests().size(), 1u);
  TableMaker open = PolicyTable();
  open.raw().rows[0].target = NameOf("policy", 11);
  door_->SetTable(open.Make());
  EXPECT_EQ(ReadMessage(waiting).Get("X-Lorry-Version"), "11") << "resolved at release";
}

// One by its id, which /generate tells in the engine's words, and the rest all together.
TEST_F(DoorTest, AHeldRequestThatIsAbortedIsOver) {
  options_.on_call = [](EngineCall, CallTicket) {};
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("")); });
  door_->SetEngineFacts({.base_models = {"base"}, .aborts_waiting = true});
  TableMaker held = PolicyTable();
  held.raw().rules[0].hold_limit_ms = 600'000;
  held.raw().rows[0].mode = RowMode::kHeld;
  door_->SetTable(held.Make());
  std::vector<Wire> waiting;
  for (const char* body :
       {R"({"lora_path":"policy","rid":"a"})", R"({"lora_path":"policy","rid":"b","stream":true})",
        R"({"lora_path":"policy","rid":["c","d"],"text":["x","y"]})",
        R"({"lora_path":"policy","text":"of nobody's choice"})"}) {
    waiting.push_back(Connect());
    waiting.back().Send(Post("/generate", body));
  }
  waiting.push_back(Connect());
  waiting.back().Send(Post("/v1/completions", R"({"model":"policy","rid":"e"})"));
  ASSERT_TRUE(Eventually([&] { return door_->held() == 5; }));
  const auto abort = [&](const char* body) {
    EXPECT_EQ(Ask(Post("/abort_request", body)).status(), 200);
  };
  abort(R"({"rid":"a"})");
  const Message plain = ReadMessage(waiting[0]);
  EXPECT_EQ(plain.status(), 200);
  EXPECT_EQ(plain.body,
            R"({"text":"","output_ids":[],"meta_info":{"id":"a","finish_reason":{"type":"abort",)"
            R"("message":"Abort in waiting queue"},"completion_tokens":0}})");
  abort(R"({"rid":"b"})");
  const Message stream = ReadMessage(waiting[1]);
  EXPECT_EQ(stream.body.rfind(R"(data: {"text":"",)", 0), 0u) << stream.body;
  EXPECT_TRUE(stream.body.ends_with("\n\ndata: [DONE]\n\n")) << stream.body;
  abort(R"({"rid":"c"})");
  EXPECT_EQ(door_->held(), 3u) << "its other prompt is wanted";
  abort(R"({"rid":"d"})");
  const std::string batch = ReadMessage(waiting[2]).body;
  EXPECT_EQ(batch.rfind(R"([{"text":"")", 0), 0u) << batch;
  EXPECT_NE(batch.find(R"("id":"d")"), std::string::npos) << batch;
  abort(R"({"abort_all":true})");
  EXPECT_EQ(ReadMessage(waiting[3]).status(), 200);
  const Message other = ReadMessage(waiting[4]);
  EXPECT_EQ(other.status(), 499);
  EXPECT_EQ(other.Get("X-Lorry-Reason"), "REQUEST_ABORTED");
  for (const Message& request : engine_->requests()) EXPECT_EQ(request.path(), "/abort_request");
}

TEST_F(DoorTest, LetsAHeldRequestGo) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  TableMaker held;
  held.Rules({.adapter = AdapterName("policy"), .current_run = RunId(1), .hold_limit_ms = 20});
  held.Row("policy", RowMode::kHeld);
  door_->SetTable(held.Make());
  const Message late = Ask(Post("/v1/completions", R"({"model":"policy"})"));
  EXPECT_EQ(late.status(), 503);
  EXPECT_EQ(late.Get("X-Lorry-Reason"), "HELD_TOO_LONG");
  EXPECT_EQ(late.Get("Retry-After"), "1");
  EXPECT_EQ(late.Get("X-Lorry-Request-Id").size(), 32u);
  held.raw().rules[0].hold_limit_ms = 60'000;
  door_->SetTable(held.Make());
  {
    Wire leaving = Connect();
    leaving.Send(Post("/v1/completions", R"({"model":"policy"})", "X-Request-Id: gone\r\n"));
    leaving.HalfClose();
    EXPECT_TRUE(leaving.AtEnd());
  }
  EXPECT_TRUE(Eventually([&] { return door_->Explain("gone").has_value(); }));
  EXPECT_EQ(door_->Explain("gone")->status, 499);
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(DoorTest, ARequestWaitsUntilItsAdapterIsLoadedAndNoLonger) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  TableMaker away;
  away.Rules({.adapter = AdapterName("policy"), .current_run = RunId(1), .demand_wait_ms = 20});
  away.Row("policy", RowMode::kOpen, 12);
  away.raw().rows[0].on_demand = true;
  away.raw().rows[0].waits_for = "its slots are held by critic";
  door_->SetTable(away.Make());
  const Message late = Ask(Post("/v1/completions", R"({"model":"policy"})"));
  EXPECT_EQ(late.status(), 503);
  EXPECT_EQ(late.Get("X-Lorry-Reason"), "NOT_RESIDENT");
  EXPECT_EQ(late.Get("Retry-After"), "2");
  EXPECT_NE(late.body.find("its slots are held by critic"), std::string::npos);
  EXPECT_TRUE(engine_->requests().empty());
  EXPECT_TRUE(door_->Snapshot().waiting.empty()) << "nobody waits any more";

  away.raw().rules[0].demand_wait_ms = 60'000;
  door_->SetTable(away.Make());
  Wire waits = Connect();
  waits.Send(Post("/v1/completions", R"({"model":"policy"})"));
  const std::vector<AdapterName> policy = {AdapterName("policy")};
  EXPECT_TRUE(Eventually([&] { return door_->Snapshot().waiting == policy; }));
  door_->SetTable(away.Loaded("policy", 12).Make());
  EXPECT_EQ(ReadMessage(waits).status(), 200);
  EXPECT_TRUE(door_->Snapshot().waiting.empty());
}

TEST_F(DoorTest, RefusesInTheEnginesOwnShape) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  const Message none = Ask(Post("/v1/completions", R"({"model":"base"})"));
  EXPECT_EQ(none.status(), 400);
  EXPECT_EQ(none.body.find(R"({"object":"error","message":)"), 0u);
  EXPECT_NE(none.body.find(R"("type":"NO_ADAPTER")"), std::string::npos);
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"nope"})")).status(), 404);
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy@5"})")).Get("X-Lorry-Reason"),
            "NOT_LOADED");
  EXPECT_EQ(Ask(Post("/load_lora_adapter", "{}")).Get("X-Lorry-Reason"), "ROUTE_REFUSED");
  EXPECT_EQ(Ask(Post("/v1/decisions", "{}")).status(), 403);
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy@5"})")).Get("x-should-retry"), "false");
  EXPECT_EQ(Ask(Post("/v1/score", R"({"model":"policy"})")).Get("X-Lorry-Reason"), "ROUTE_REFUSED")
      << "it would be answered by the base model";
  EXPECT_EQ(Ask(Post("/generate", R"({"text":"x","lora_path":[]})")).status(), 400);
  EXPECT_EQ(Ask(Post("/generate", R"({"text":[],"lora_path":[]})")).status(), 400);
  EXPECT_EQ(Ask(Post("/generate", "{\"lora_path\":\"policy\"")).Get("X-Lorry-Reason"),
            "REQUEST_INVALID");
  for (const char* min : {"x", "eval", "latest", "-1", "r1", "r1.x", "r0.3"}) {
    const std::string field = "X-Lorry-Min-Version: " + std::string(min) + "\r\n";
    EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy"})", field)).status(), 400) << min;
  }
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy@11"})", "X-Lorry-Min-Version: 12\r\n"))
                .Get("X-Lorry-Reason"),
            "STALE_VERSION");
  EXPECT_EQ(Ask(Post("/generate", "x", "Content-Encoding: gzip\r\n")).status(), 415);
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(DoorTest, HonoursTheMinVersion) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  constexpr const char* kAsk = R"({"lora_path":"policy"})";
  TableMaker quick = PolicyTable();
  quick.raw().rules[0].hold_limit_ms = 20;
  door_->SetTable(quick.Make());
  const Message late = Ask(Post("/generate", kAsk, "X-Lorry-Min-Version: 13\r\n"));
  EXPECT_EQ(late.status(), 503);
  EXPECT_EQ(late.Get("X-Lorry-Reason"), "CATCHING_UP");
  EXPECT_NE(late.Get("Retry-After"), "");
  door_->SetTable(PolicyTable().Make());
  Wire wire = Connect();
  wire.Send(Post("/generate", kAsk, "X-Lorry-Min-Version: 13\r\n"));
  TableMaker newer = PolicyTable();
  newer.Loaded("policy", 13);
  newer.raw().rows[0].target = NameOf("policy", 13);
  door_->SetTable(newer.Make());
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Version"), "13");
  EXPECT_EQ(Ask(Post("/generate", kAsk, "X-Lorry-Min-Version: r1.13\r\n")).status(), 200);
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"policy@13"})", "X-Lorry-Min-Version: r2.9\r\n"))
                .Get("X-Lorry-Reason"),
            "STALE_VERSION");
}

TEST_F(DoorTest, GivesClientsTheirOwnIdsBack) {
  Gate first;
  Gate aborted;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      aborted.Open();
      return wire.Send(JsonReply(""));
    }
    const std::string id = request.body.substr(request.body.find("\"rid\":\"") + 7, 32);
    wire.Send(StreamHead() + Chunk("data: {\"id\":\"" + id + "\"}\n\n"));
    first.Open();
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy","rid":"mine","stream":true})"));
  EXPECT_NE(wire.ReadUntil("}\n\n").find(R"(data: {"id":"mine"})"), std::string::npos);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"other"})")).status(), 200);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"abort_all":true})")).status(), 403);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"mine"})")).status(), 200);
  EXPECT_TRUE(aborted.Wait());
  wire.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(Eventually([&] { return door_->Explain("mine").has_value(); }));
}

// What waits in the engine may be aborted: no first token is waited for, which a plain reply does not
// show. An engine that is still reading the request does not know it at first.
TEST_F(DoorTest, AbortsAPlainRequestUntilItIsOver) {
  std::atomic<int> asked{0};
  std::atomic<int> told{0};
  std::unique_ptr<Gate> aborted;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      if (++told > asked) aborted->Open();
      return wire.Send(JsonReply(""));
    }
    ++asked;
    EXPECT_TRUE(aborted->Wait());
    return wire.Send(JsonReply(R"({"meta_info":{"finish_reason":{"type":"abort"}}})"));
  });
  door_->SetEngineFacts({.base_models = {"base"}, .aborts_waiting = true});
  const auto ask = [&](const std::string& more, int requests) {
    asked = told = 0;
    aborted = std::make_unique<Gate>();
    Wire wire = Connect();
    wire.Send(Post("/generate", R"({"lora_path":"policy","rid":"mine",)" + more + "}"));
    EXPECT_TRUE(Eventually([&] { return asked == requests; }));
    return wire;
  };
  Wire waits = ask(R"("text":"a")", 1);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"mine"})")).status(), 200);
  EXPECT_EQ(ReadMessage(waits).status(), 200);
  EXPECT_TRUE(BecomesQuiet());
  for (const int n : {1, 2}) {
    ask(R"("sampling_params":{"n":)" + std::to_string(n) + "}", n).Close();
    EXPECT_TRUE(BecomesQuiet()) << n;
    EXPECT_GT(told, n);
  }
  door_.reset();
  engine_.reset();
}

TEST_F(DoorTest, AnswersControlRoutesTruthfully) {
  StartBefore([](const Message& request, Wire& wire) {
    if (request.path() == "/v1/models") {
      return wire.Send(JsonReply(R"({"object":"list","data":[{"id":"base","parent":null}]})"));
    }
    return wire.Send(JsonReply(R"({"api_key":"k","version":"1"})"));
  });
  EXPECT_NE(Ask(Get("/v1/models")).body.find(R"("id":"policy@12")"), std::string::npos);
  EXPECT_EQ(Ask(Get("/v1/models/policy")).body.find(R"({"id":"policy",)"), 0u);
  EXPECT_EQ(Ask(Get("/v1/models/polcy")).status(), 404);
  TableMaker untold = PolicyTable();
  untold.raw().awaits_desired = true;
  door_->SetTable(untold.Make());
  EXPECT_EQ(Ask(Get("/v1/models/polcy")).Get("X-Lorry-Reason"), "CATCHING_UP");
  EXPECT_EQ(Ask(Get("/server_info")).body, R"({"api_key":"***","version":"1"})");
  EXPECT_EQ(Ask(Get("/model_info")).body, R"({"api_key":"k","version":"1"})") << "passed";
  EXPECT_EQ(Ask(Get("/generate")).status(), 405);
  door_->SetTable(proxy::DoorTable{});
  EXPECT_EQ(Ask(Get("/health")).status(), 503) << "no engine answers";
  EXPECT_EQ(Ask(Get("/v1/models")).status(), 503);
}

TEST_F(DoorTest, SaysThatNoEngineListens) {
  uint16_t port = 0;
  { port = testing::ScriptedEngine(nullptr).port(); }
  StartBefore(port);
  const Message reply = Ask(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_EQ(reply.status(), 503);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_UNREACHABLE");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  EXPECT_TRUE(BecomesQuiet());
}

}  // namespace
}  // namespace lorry::door
