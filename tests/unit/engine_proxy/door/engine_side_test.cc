// The door and an engine that is slow, closes, breaks off, or cannot be reached.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "tests/testing/captured_log.h"
#include "tests/testing/names.h"
#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;
using testing::Chunk;
using testing::DoorTest;
using testing::Eventually;
using testing::Gate;
using testing::Get;
using ::testing::HasSubstr;
using testing::JsonReply;
using testing::Message;
using testing::Post;
using testing::ReadMessage;
using testing::StreamHead;
using testing::Wire;

constexpr const char* kAsk = R"({"lora_path":"policy"})";
constexpr const char* kAskStream = R"({"lora_path":"policy","stream":true})";

class EngineSideTest : public DoorTest {
 protected:
  // What a client reads of a reply that an engine breaks off after `sent`.
  Message AfterBreakingOff(const std::string& sent) {
    door_.reset();
    StartBefore([sent](const Message&, Wire& wire) {
      wire.Send(sent);
      return false;
    });
    return Ask(Post("/generate", kAsk));
  }
  // Before an engine that was not looked up since, at an address where it does not listen.
  void StartWithoutBoot(const std::string& name) {
    SetName(name, {"127.0.0.2"});
    engine_ = std::make_unique<testing::ScriptedEngine>(
        [](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
    options_.engine_host = name;
    options_.engine_port = engine_->port();
    options_.threads = 1;
    door_ = std::make_unique<Door>(options_);
    ASSERT_TRUE(door_->Start().ok());
    door_->SetTable(testing::PolicyTable().Make());
  }
};

TEST_F(EngineSideTest, ReusesConnectionsToTheEngine) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  Wire wire = Connect();  // one connection stays on one thread, and so on one pool
  for (int i = 0; i < 5; ++i) {
    wire.Send(Post("/generate", kAsk));
    EXPECT_EQ(ReadMessage(wire).status(), 200);
  }
  EXPECT_EQ(engine_->connections(), 1);
}

// As "localhost" is ::1 first on most machines, and engines listen on 127.0.0.1.
TEST_F(EngineSideTest, AnEngineThatListensOnOneOfItsNamesAddressesIsFound) {
  SetName("both.test", {"127.0.0.2", "127.0.0.1"});
  options_.engine_host = "both.test";
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  EXPECT_EQ(Ask(Post("/generate", kAsk)).status(), 200);
}

// A container that is made anew has another address, and its name stands for that.
TEST_F(EngineSideTest, AnEngineThatComesBackElsewhereIsFoundThere) {
  SetName("moves.test", {"127.0.0.2"});
  options_.engine_host = "moves.test";
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  EXPECT_EQ(Ask(Post("/generate", kAsk)).status(), 503);
  SetName("moves.test", {"127.0.0.1"});
  door_->SetEngineFacts({.base_models = {"base"}});
  EXPECT_TRUE(Eventually([&] { return Ask(Post("/generate", kAsk)).status() == 200; }));
}

// Nothing tells of its address but that it cannot be reached at the last one.
TEST_F(EngineSideTest, AnEngineThatIsNotReachedIsLookedUpAgain) {
  StartWithoutBoot("moved.test");
  SetName("moved.test", {"127.0.0.1"});
  EXPECT_EQ(Ask(Post("/generate", kAsk)).Get("X-Lorry-Reason"), "ENGINE_UNREACHABLE");
  EXPECT_TRUE(Eventually([&] { return Ask(Post("/generate", kAsk)).status() == 200; }));
}

// What was asked for before the boot may be the address before it.
TEST_F(EngineSideTest, ABootIsLookedUpAlsoWhereALookupIsUnderWay) {
  StartWithoutBoot("boots.test");
  const int before = LookupsOf("boots.test");
  SetName("boots.test", {});
  EXPECT_EQ(Ask(Post("/generate", kAsk)).Get("X-Lorry-Reason"), "ENGINE_UNREACHABLE");
  door_->SetEngineFacts({.base_models = {"base"}});
  EXPECT_EQ(Ask(Post("/generate", kAsk)).Get("X-Lorry-Reason"), "ENGINE_UNREACHABLE");
  SetName("boots.test", {"127.0.0.2"});
  EXPECT_TRUE(Eventually([&] { return LookupsOf("boots.test") == before + 2; }));
}

// Neither a request nor whoever tells of a boot.
TEST_F(EngineSideTest, NobodyWaitsForANameServer) {
  StartWithoutBoot("slow.test");
  SetName("slow.test", {});
  door_->SetEngineFacts({.base_models = {"base"}});
  EXPECT_EQ(Ask(Post("/generate", kAsk)).Get("X-Lorry-Reason"), "ENGINE_UNREACHABLE");
  SetName("slow.test", {"127.0.0.1"});
  EXPECT_TRUE(Eventually([&] { return Ask(Post("/generate", kAsk)).status() == 200; }));
}

// An engine that was started again has its port back before the proxy has loaded anything there.
TEST_F(EngineSideTest, SaysThatAnEngineHasNotLoadedTheNameYet) {
  StartBefore(
      [](const Message&, Wire& wire) {
        return wire.Send(JsonReply(
            R"({"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}})",
            404));
      },
      EngineKind::kVllm);
  const Message vllm = Ask(Post("/v1/completions", R"({"model":"policy"})"));
  EXPECT_EQ(vllm.status(), 503);
  EXPECT_EQ(vllm.Get("X-Lorry-Reason"), "ENGINE_RESTARTED");
  EXPECT_EQ(vllm.Get("Retry-After"), "1");
  door_.reset();
  StartBefore([](const Message& request, Wire& wire) {
    const bool is_odd = request.body.find("odd") != std::string::npos;
    const std::string name = is_odd ? "odd" : testing::NameOf("policy", 12).value;
    return wire.Send(JsonReply(
        R"({"error":{"message":"Got LoRA adapter that has never been loaded: )" + name + R"("}})",
        400));
  });
  EXPECT_EQ(Ask(Post("/generate", kAsk)).Get("X-Lorry-Reason"), "ENGINE_RESTARTED");
  EXPECT_EQ(Ask(Post("/v1/completions", R"({"model":"policy","n":2})")).status(), 503);
  EXPECT_EQ(Ask(Post("/v1/completions", R"({"model":"policy","n":2,"stream":true})")).status(),
            503);
  const Message other = Ask(Post("/generate", R"({"lora_path":"policy","text":"odd"})"));
  EXPECT_EQ(other.status(), 400) << "a request that the engine refuses for another reason";
  EXPECT_EQ(other.body,
            R"({"error":{"message":"Got LoRA adapter that has never been loaded: odd"}})");
  EXPECT_TRUE(BecomesQuiet());
}

// vLLM's server sends /v1/responses' first two events, and refuses what is wrong, before its engine
// has seen the request: an engine that hangs must not seem to answer by them.
TEST_F(EngineSideTest, HearsTheEngineOnlyWhereItSpeaksItself) {
  Gate goes_on;
  StartBefore(
      [&goes_on](const Message& request, Wire& wire) {
        if (request.path() == "/v1/embeddings") return wire.Send(JsonReply("{}", 400));
        wire.Send(StreamHead() + Chunk("data: {}\n\n"));
        goes_on.Wait();
        return wire.Send(Chunk("data: {}\n\n") + Chunk(""));
      },
      EngineKind::kVllm);
  const std::string ask = R"({"model":"policy","stream":true})";
  EXPECT_EQ(Ask(Post("/v1/embeddings", ask)).status(), 400);
  EXPECT_EQ(door_->pieces_heard(), 0U);
  Wire responses = Connect();
  responses.Send(Post("/v1/responses", ask));
  EXPECT_NE(responses.ReadUntil("data: {}").find("200 OK"), std::string::npos);
  EXPECT_EQ(door_->pieces_heard(), 0U);
  Wire completions = Connect();
  completions.Send(Post("/v1/completions", ask));
  completions.ReadUntil("data: {}");
  EXPECT_EQ(door_->pieces_heard(), 1U);
  goes_on.Open();
  responses.ReadUntil("0\r\n\r\n");
  completions.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_GE(door_->pieces_heard(), 3U);
}

TEST_F(EngineSideTest, SendsNothingOnAPooledConnectionThatTheEngineClosed) {
  StartBefore([](const Message&, Wire& wire) {
    wire.Send(JsonReply("{}"));
    return false;  // promised to stay, and closes
  });
  Wire wire = Connect();
  for (int i = 0; i < 20; ++i) {
    wire.Send(Post("/generate", kAsk));
    EXPECT_EQ(ReadMessage(wire).status(), 200) << i;
    EXPECT_TRUE(Eventually([&] { return engine_->open_connections() == 0; }));
  }
  EXPECT_EQ(engine_->requests().size(), 20u);
}

// The engine may have answered half of it, or be about to: nobody can know.
TEST_F(EngineSideTest, NeverSendsTwiceWhatAnEngineReadBeforeItDied) {
  std::atomic<int> asked{0};
  StartBefore([&](const Message&, Wire& wire) {
    return ++asked == 1 && wire.Send(JsonReply("{}"));  // the second is read, and the end
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", kAsk));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  wire.Send(Post("/generate", kAsk));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 502);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_BROKE_OFF");
  EXPECT_EQ(engine_->connections(), 1) << "the connection was a pooled one";
  EXPECT_EQ(asked, 2);
}

TEST_F(EngineSideTest, NeverSendsTwiceWhatAFreshConnectionLost) {
  StartBefore([](const Message&, Wire&) { return false; });
  const Message reply = Ask(Post("/generate", kAsk));
  EXPECT_EQ(reply.status(), 502);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_BROKE_OFF");
  EXPECT_EQ(engine_->requests().size(), 1u);
}

TEST_F(EngineSideTest, AnswersWhereAnEngineBreaksOffBeforeTheClientGotAHead) {
  for (const char* sent : {
           "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense",
           "HTTP/1.1 200 OK\r\nContent-",
       }) {
    const Message reply = AfterBreakingOff(sent);
    EXPECT_EQ(reply.status(), 502) << sent;
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_BROKE_OFF") << sent;
    EXPECT_EQ(reply.Get("X-Lorry-Version"), "12") << sent;
    EXPECT_TRUE(BecomesQuiet());
  }
}

TEST_F(EngineSideTest, SaysWhatIsWrongWithAReplyThatCannotBeRead) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::pair<std::string, const char*> replies[] = {
      {ok + "Content-Length: 4\r\nContent-Length: 4\r\n\r\nsome", "Content-Length is given twice"},
      {ok + "Content-Length: 4\r\n" + chunked + "\r\nsome", "exclude each other"},
      {"HTTP/1.0 200 OK\r\n" + chunked + "\r\nsome", "HTTP/1.0 has no Transfer-Encoding"},
      {ok + "A: " + std::string(70'000, 'a'), "the head is too large"},
      {ok + chunked + "\r\nnonsense\r\n", "chunks"},
      {ok + chunked + "\r\nffffffffffffffffff\r\n", "chunks"}};
  for (const auto& [sent, says] : replies) {
    const Message reply = AfterBreakingOff(sent);
    EXPECT_EQ(reply.status(), 502) << says;
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_REPLY_INVALID") << says;
    EXPECT_THAT(reply.body, HasSubstr(says));
    EXPECT_EQ(reply.Get("X-Lorry-Version"), "12") << says;
    for (const char* stream : {"false", "true"}) {
      const Message split =
          Ask(Post("/generate", R"({"lora_path":"policy","sampling_params":{"n":2},"stream":)" +
                                    std::string(stream) + "}"));
      EXPECT_EQ(split.status(), 502) << says << stream;
      EXPECT_THAT(split.body, HasSubstr(says)) << stream;
    }
    EXPECT_EQ(Ask(Get("/v1/models")).Get("X-Lorry-Reason"), "ENGINE_REPLY_INVALID") << says;
    EXPECT_TRUE(BecomesQuiet());
  }
}

TEST_F(EngineSideTest, CutsTheConnectionWhereTheHeadWasSent) {
  StartBefore([](const Message&, Wire& wire) {
    wire.Send("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf");
    return false;
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", kAsk));
  const std::string got = wire.ReadAll();
  EXPECT_TRUE(got.ends_with("half")) << "and then the connection ends: " << got;
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ENGINE_BROKE_OFF"));
}

std::string Http10(const std::string& body, const std::string& fields = "") {
  return "POST /generate HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         fields + "\r\n" + body;
}

// HTTP/1.0 has no chunks: where a reply ends by its connection's end, a FIN would make it a whole one.
TEST_F(EngineSideTest, AnHttp10ClientSeesThatAStreamIsCut) {
  std::unique_ptr<Gate> read;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") return wire.Send(JsonReply(""));
    wire.Send(StreamHead() + Chunk(R"(data: {"text":"a"})"
                                   "\n\n"));
    EXPECT_TRUE(read->Wait());
    return false;
  });
  const std::string of_two = R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})";
  for (const std::string& body : {std::string(kAskStream), of_two}) {
    read = std::make_unique<Gate>();
    Wire wire = Connect();
    wire.Send(Http10(body));
    for (int i = 0; i < (body == of_two ? 2 : 1); ++i) wire.ReadUntil("\"a\"");
    wire.ReadUntil("\n\n");
    read->Open();
    char byte;
    EXPECT_EQ(::recv(wire.fd(), &byte, 1, 0), -1) << body;
    EXPECT_EQ(errno, ECONNRESET) << body;
    EXPECT_TRUE(BecomesQuiet());
  }
}

TEST_F(EngineSideTest, AnHttp10ClientSeesThatADrainCutsItsStream) {
  const std::string of_two = R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})";
  for (const std::string& body : {std::string(kAskStream), of_two}) {
    Gate aborted;
    StartBefore([&](const Message& request, Wire& wire) {
      if (request.path() == "/abort_request") {
        aborted.Open();
        return wire.Send(JsonReply(""));
      }
      wire.Send(StreamHead() + Chunk(R"(data: {"text":"a"})"
                                     "\n\n"));
      EXPECT_TRUE(aborted.Wait());
      return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
    });
    Wire wire = Connect();
    wire.Send(Http10(body));
    for (int i = 0; i < (body == of_two ? 2 : 1); ++i) wire.ReadUntil("\"a\"");
    wire.ReadUntil("\n\n");
    door_->Drain(0);
    char byte;
    EXPECT_EQ(::recv(wire.fd(), &byte, 1, 0), -1) << body;
    EXPECT_EQ(errno, ECONNRESET) << body;
    engine_.reset();
  }
}

// Names that are put back change its length, so that its head tells none.
TEST_F(EngineSideTest, AnHttp10ClientSeesWhereALongReplyEnds) {
  std::unique_ptr<Gate> read;
  bool whole = false;
  StartBefore([&](const Message&, Wire& wire) {
    // Its last byte begins no id, of which the door would keep it back.
    const std::string text = R"({"text":")" + std::string(19'980, 'x') + "the end.";
    wire.Send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " +
              std::to_string(text.size() + 2) + "\r\n\r\n" + text);
    EXPECT_TRUE(read->Wait());
    return whole && wire.Send("\"}");
  });
  for (const bool is_whole : {false, true}) {
    whole = is_whole;
    read = std::make_unique<Gate>();
    Wire wire = Connect();
    wire.Send(Http10(R"({"lora_path":"policy","rid":"mine"})", "Connection: keep-alive\r\n"));
    EXPECT_THAT(wire.ReadUntil("the end."), HasSubstr("Connection: close\r\n"));
    read->Open();
    if (whole) {
      EXPECT_EQ(wire.ReadUntil("}"), "\"}");
      EXPECT_TRUE(wire.AtEnd());
    } else {
      char byte;
      EXPECT_EQ(::recv(wire.fd(), &byte, 1, 0), -1);
      EXPECT_EQ(errno, ECONNRESET);
    }
    EXPECT_TRUE(BecomesQuiet());
  }
}

// One read takes these bytes, which the end came with: no event is left that would tell of it.
TEST_F(EngineSideTest, SeesAnEndThatCameTogetherWithTheLastBytes) {
  for (const bool framed : {true, false}) {
    door_.reset();
    StartBefore([framed](const Message&, Wire& wire) {
      const std::string head = framed ? StreamHead() : "HTTP/1.1 200 OK\r\n\r\n";
      const std::string some = head + (framed ? Chunk("some") : "some");
      EXPECT_EQ(::send(wire.fd(), some.data(), some.size(), MSG_MORE),
                static_cast<ssize_t>(some.size()));
      wire.HalfClose();  // sends both, in one segment
      EXPECT_TRUE(wire.AtEnd());
      return false;
    });
    Wire wire = Connect();
    wire.Send(Post("/generate", kAsk));
    const std::string got = wire.ReadUntil("0\r\n\r\n");
    EXPECT_NE(got.find("4\r\nsome\r\n"), std::string::npos) << got;
    EXPECT_EQ(got.ends_with("0\r\n\r\n"), !framed)
        << "whole only where the end is the end: " << got;
    EXPECT_TRUE(BecomesQuiet());
  }
}

// What ends with its connection ends with a FIN. A reset is no end: there may have been more.
TEST_F(EngineSideTest, CutsAReplyThatAResetEnds) {
  Gate read;
  StartBefore([&](const Message&, Wire& wire) {
    wire.Send("HTTP/1.1 200 OK\r\n\r\nsome");
    EXPECT_TRUE(read.Wait());
    wire.Reset();
    return false;
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", kAsk));
  EXPECT_TRUE(wire.ReadUntil("some").ends_with("some"));
  read.Open();
  EXPECT_FALSE(wire.ReadUntil("0\r\n\r\n").ends_with("0\r\n\r\n"));
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ENGINE_BROKE_OFF"));
}

TEST_F(EngineSideTest, WaitsForAsLongAsTheEngineWorks) {
  EXPECT_EQ(DoorLimits().engine_silence_ms, 0) << "an answer may take hours";
}

TEST_F(EngineSideTest, GivesUpOnASilentVllm) {
  options_.limits.engine_silence_ms = 20;
  Gate closed;
  StartBefore(
      [&](const Message&, Wire& wire) {
        if (wire.AtEnd()) closed.Open();
        return false;
      },
      EngineKind::kVllm);
  const Message reply = Ask(Post("/v1/completions", R"({"model":"policy"})"));
  EXPECT_EQ(reply.status(), 504);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_TIMEOUT");
  EXPECT_TRUE(closed.Wait()) << "which ends the request there";
  EXPECT_TRUE(BecomesQuiet());
}

// SGLang forgets a request whose connection closes, and goes on with it.
TEST_F(EngineSideTest, CountsWhatItGaveUpOnASilentSglangUntilItsEnd) {
  options_.limits.engine_silence_ms = 20;
  Gate told;
  StartBefore([&](const Message&, Wire& wire) {
    EXPECT_TRUE(told.Wait());
    return wire.Send(JsonReply("{}"));
  });
  const Message reply = Ask(Post("/generate", kAsk));
  EXPECT_EQ(reply.status(), 504);
  EXPECT_EQ(reply.Get("Connection"), "close");
  EXPECT_EQ(InFlight(12), 1u);
  EXPECT_EQ(engine_->open_connections(), 1);
  told.Open();
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ENGINE_TIMEOUT"));
  EXPECT_EQ(engine_->requests().size(), 1u) << "no abort: it may still have been queued";
}

TEST_F(EngineSideTest, AbortsAStreamThatFallsSilentOnSglang) {
  options_.limits.engine_silence_ms = 20;
  Gate aborted;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      EXPECT_EQ(InFlight(12), 1u);
      aborted.Open();
      return wire.Send(JsonReply(""));
    }
    wire.Send(StreamHead() + Chunk("data: 1\n\n"));
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(Chunk("data: abort\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", kAskStream));
  EXPECT_TRUE(wire.ReadAll().ends_with("data: 1\n\n\r\n")) << "and the connection is cut";
  EXPECT_TRUE(aborted.Wait());
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(EngineSideTest, SaysThatItsLimitsAreMoreThanTheProcessMayHave) {
  const CapturedLog log;
  options_.limits.connections = 1u << 31;
  options_.limits.live_requests = 1u << 30;
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  EXPECT_THAT(log.text(), HasSubstr("--door-connections is "));
  EXPECT_THAT(log.text(), HasSubstr("--door-live-requests is "));
  EXPECT_THAT(log.text(), HasSubstr("and not 1073741824"));
}

TEST_F(EngineSideTest, SaysThatItHasNoDescriptorForTheEngine) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  Wire wire = Connect();
  wire.Send(testing::Get("/health"));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{3, before.rlim_max};  // those that are open stay open
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  wire.Send(Post("/generate", kAsk));
  const Message reply = ReadMessage(wire);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(reply.status(), 503);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "DOOR_OUT_OF_SOCKETS");
  wire.Send(Post("/generate", kAsk));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
}

}  // namespace
}  // namespace lorry::door
