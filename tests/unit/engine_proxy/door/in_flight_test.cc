// Requests of `latest` that run when their row flips, where policy does not let them finish.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/engine_proxy/door/body_facts.h"
#include "tests/unit/engine_proxy/door/flip_fixture.h"

namespace lorry::door {
namespace {

using fleet::EngineKind;
using fleet::InFlightMode;
using testing::After;
using testing::Chunk;
using testing::Eventually;
using testing::FlipTest;
using testing::Gate;
using testing::Get;
using testing::JsonReply;
using testing::Message;
using testing::Post;
using testing::ReadMessage;
using testing::ScriptedEngine;
using testing::StreamHead;
using testing::Wire;

constexpr const char* kToken = "data: {\"text\":\"a\"}\n\n";
constexpr const char* kAborted =
    "data: {\"text\":\"a\",\"meta_info\":{\"finish_reason\":{\"type\":\"abort\"}}}\n\n";

class InFlightTest : public FlipTest {
 protected:
  InFlightTest() : FlipTest(InFlightMode::kAbort) {}
  void Start(ScriptedEngine::Script script, bool aborts_waiting = true) {
    StartOn(std::move(script), {.aborts_waiting = aborts_waiting});
  }
};

TEST_F(InFlightTest, AStreamIsAbortedWhenItsRowFlipsAndPassesTheEnginesOwnEnd) {
  Gate began, aborted;
  std::string asked, told;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      told = After(request.body, "\"rid\":\"");
      wire.Send(JsonReply(""));
      aborted.Open();
      return true;
    }
    asked = After(request.body, "\"rid\":\"");
    wire.Send(StreamHead() + Chunk(kToken));
    began.Open();
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(Chunk(kAborted) + Chunk("data: [DONE]\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true})"));
  EXPECT_TRUE(began.Wait());
  EXPECT_EQ(InFlight(11), 1u);
  door_->SetTable(On(12));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
  EXPECT_EQ(reply.Get("X-Lorry-In-Flight"), "");
  EXPECT_EQ(reply.body, std::string(kToken) + kAborted + "data: [DONE]\n\n");
  EXPECT_EQ(asked, told);
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ROW_FLIPPED"));
  Stop();
}

// SGLang before 0.5.23 never lets go of the adapter of a request that is aborted while it waits.
TEST_F(InFlightTest, AStreamThatHasNoTokenYetIsAbortedWithItsFirst) {
  std::atomic<bool> has_token{false};
  Gate asked, go, aborted;
  Start(
      [&](const Message& request, Wire& wire) {
        if (request.path() == "/abort_request") {
          EXPECT_TRUE(has_token);
          wire.Send(JsonReply(""));
          aborted.Open();
          return true;
        }
        asked.Open();
        EXPECT_TRUE(go.Wait());
        has_token = true;
        wire.Send(StreamHead() + Chunk(kToken));
        EXPECT_TRUE(aborted.Wait());
        return wire.Send(Chunk(kAborted) + Chunk(""));
      },
      false);
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  go.Open();
  EXPECT_EQ(ReadMessage(wire).body, std::string(kToken) + kAborted);
  Stop();
}

TEST_F(InFlightTest, AReplyInOnePieceIsAbortedUntilTheEngineKnowsItsId) {
  std::atomic<int> aborts{0};
  Gate asked, ended;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      // The first abort comes before SGLang has read the request: it is answered, and lost.
      if (++aborts == 2) ended.Open();
      return wire.Send(JsonReply(""));
    }
    if (request.path() == "/v1/models") return wire.Send(JsonReply(R"({"data":[]})"));
    asked.Open();
    EXPECT_TRUE(ended.Wait());
    return wire.Send(JsonReply(R"({"text":"a","meta_info":{"finish_reason":{"type":"abort"}}})"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.body, R"({"text":"a","meta_info":{"finish_reason":{"type":"abort"}}})");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
  EXPECT_TRUE(BecomesQuiet());
  // Whatever is under way by now reaches the engine before these.
  for (int i = 0; i < 2; ++i) {
    WaitForThreads();
    EXPECT_EQ(Ask(Get("/v1/models")).status(), 200);
  }
  EXPECT_EQ(aborts, 2) << "what has ended is left alone";
  Stop();
}

TEST_F(InFlightTest, WhereNothingCanBeAbortedTheReplySaysThatItFinishes) {
  Gate asked, go;
  Start(
      [&](const Message& request, Wire& wire) {
        EXPECT_EQ(request.path(), "/generate");
        asked.Open();
        EXPECT_TRUE(go.Wait());
        return wire.Send(JsonReply(R"({"text":"a"})"));
      },
      false);
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  go.Open();
  const Message reply = ReadMessage(wire);
  EXPECT_TRUE(reply.Get("X-Lorry-In-Flight").starts_with("finish_on_old; ")) << reply.head;
  EXPECT_EQ(engine_->requests().size(), 1u);
  Stop();
}

TEST_F(InFlightTest, NamedVersionsAndAliasesAreLeftAlone) {
  Gate go;
  std::atomic<int> asked{0};
  Start([&](const Message& request, Wire& wire) {
    EXPECT_EQ(request.path(), "/generate");
    ++asked;
    EXPECT_TRUE(go.Wait());
    return wire.Send(JsonReply("{}"));
  });
  Wire version = Connect(), alias = Connect();
  version.Send(Post("/generate", R"({"lora_path":"policy@11"})"));
  alias.Send(Post("/generate", R"({"lora_path":"policy@eval"})"));
  EXPECT_TRUE(Eventually([&] { return asked == 2; }));
  door_->SetTable(On(12));
  go.Open();
  EXPECT_EQ(ReadMessage(version).status(), 200);
  EXPECT_EQ(ReadMessage(alias).status(), 200);
  EXPECT_EQ(engine_->requests().size(), 2u) << "no abort";
  Stop();
}

TEST_F(InFlightTest, FinishesOnTheVersionThatItBeganWithByDefault) {
  rule_ = InFlightMode::kFinishOnOld;
  Gate asked, go;
  Start([&](const Message& request, Wire& wire) {
    EXPECT_EQ(request.path(), "/generate");
    asked.Open();
    EXPECT_TRUE(go.Wait());
    return wire.Send(JsonReply("{}"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  go.Open();
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-In-Flight"), "");
  EXPECT_EQ(engine_->requests().size(), 1u);
  Stop();
}

TEST_F(InFlightTest, ARowThatIsHeldAbortsNothingBeforeItsDecision) {
  Gate asked, ended;
  std::atomic<int> aborts{0};
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      ++aborts;
      ended.Open();
      return wire.Send(JsonReply(""));
    }
    asked.Open();
    EXPECT_TRUE(ended.Wait());
    return wire.Send(JsonReply("{}"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy"})"));
  EXPECT_TRUE(asked.Wait());
  proxy::DoorTable held = On(11);
  held.rows[0].mode = fleet::RowMode::kHeld;
  held.rows[0].target = EngineName();
  door_->SetTable(held);
  WaitForThreads();
  door_->SetTable(On(11));  // it is revoked
  WaitForThreads();
  EXPECT_EQ(aborts, 0);
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_GE(aborts, 1);
  Stop();
}

TEST_F(InFlightTest, ARequestIsCountedOnceHoweverManyOfItsRowsFlip) {
  struct Flips : DoorObserver {
    void OnFlipped(InFlightMode rule) override {
      EXPECT_EQ(rule, InFlightMode::kAbort);
      ++count;
    }
    std::atomic<int> count{0};
  } flips;
  options_.observer = &flips;
  Gate asked, go;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") return wire.Send(JsonReply(""));
    if (request.body.find("over") != std::string::npos) return wire.Send(JsonReply("{}"));
    asked.Open();
    EXPECT_TRUE(go.Wait());
    return wire.Send(JsonReply("[{},{}]"));
  });
  EXPECT_EQ(Ask(Post("/generate", R"({"text":"over","lora_path":"policy"})")).status(), 200);
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"text":["a","b"],"lora_path":["policy","policy"]})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  WaitForThreads();
  door_->SetTable(On(13));
  WaitForThreads();
  go.Open();
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_EQ(flips.count, 1) << "nor is one that was over before";
  Stop();
}

TEST_F(InFlightTest, OfABatchOnlyThePromptsWhoseRowFlipped) {
  Gate asked, ended;
  std::string rids;
  std::vector<std::string> aborted;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      aborted.push_back(After(request.body, "\"rid\":\""));
      ended.Open();
      return wire.Send(JsonReply(""));
    }
    rids = request.body;
    asked.Open();
    EXPECT_TRUE(ended.Wait());
    return wire.Send(JsonReply("[{},{}]"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"text":["a","b"],"lora_path":["policy@11","policy"]})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_TRUE(BecomesQuiet());
  ASSERT_GE(aborted.size(), 1u);
  EXPECT_TRUE(rids.find("\",\"" + aborted[0] + "\"]") != std::string::npos)
      << "the second: " << rids;
  for (const std::string& id : aborted) EXPECT_EQ(id, aborted[0]);
  Stop();
}

TEST_F(InFlightTest, OfABatchOfOneAdapterEveryPrompt) {
  std::mutex mutex;
  std::set<std::string> aborted;
  Gate asked, all;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      const std::lock_guard<std::mutex> lock(mutex);
      aborted.insert(After(request.body, "\"rid\":\""));
      if (aborted.size() == 2) all.Open();
      return wire.Send(JsonReply(""));
    }
    asked.Open();
    EXPECT_TRUE(all.Wait());
    return wire.Send(JsonReply("[{},{}]"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"text":["a","b"],"lora_path":"policy"})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  Stop();
}

TEST_F(InFlightTest, OfAStreamedBatchOnlyThePromptsWhoseRowFlipped) {
  std::mutex mutex;
  std::vector<std::string> aborted;
  std::string rids;
  Gate began, ended;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      const std::lock_guard<std::mutex> lock(mutex);
      aborted.push_back(After(request.body, "\"rid\":\""));
      ended.Open();
      return wire.Send(JsonReply(""));
    }
    rids = After(request.body, "\"rid\":[", ']');
    wire.Send(StreamHead() + Chunk("data: [" + rids + "]\n\n"));
    began.Open();
    EXPECT_TRUE(ended.Wait());
    return wire.Send(Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(
      Post("/generate", R"({"text":["a","b"],"lora_path":["policy@11","policy"],"stream":true})"));
  EXPECT_TRUE(began.Wait());
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_TRUE(BecomesQuiet());
  ASSERT_EQ(aborted.size(), 1u);
  EXPECT_TRUE(rids.ends_with(aborted[0] + "\"")) << rids;
  Stop();
}

TEST_F(InFlightTest, EverySampleOfNIsAborted) {
  std::mutex mutex;
  std::set<std::string> asked, aborted;
  Gate all_asked, all_aborted;
  Start([&](const Message& request, Wire& wire) {
    const std::string id = After(request.body, "\"rid\":\"");
    if (request.path() == "/abort_request") {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        aborted.insert(id);
        if (aborted.size() == 3) all_aborted.Open();
      }
      return wire.Send(JsonReply(""));
    }
    {
      const std::lock_guard<std::mutex> lock(mutex);
      asked.insert(id);
      if (asked.size() == 3) all_asked.Open();
    }
    EXPECT_TRUE(all_aborted.Wait());
    return wire.Send(JsonReply(R"({"meta_info":{"finish_reason":{"type":"abort"}}})"));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy","sampling_params":{"n":3}})"));
  EXPECT_TRUE(all_asked.Wait());
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_EQ(asked, aborted);
  Stop();
}

TEST_F(InFlightTest, VllmIsAskedByTheIdThatTheDoorGaveIt) {
  kind_ = EngineKind::kVllm;
  std::atomic<bool> was_told{false};
  std::string id, told;
  Gate asked, aborted;
  Start([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_requests") {
      if (!was_told.exchange(true)) told = request.body;
      wire.Send(JsonReply(R"({"status":"aborted","aborted":2})"));
      aborted.Open();
      return true;
    }
    id = request.Get("X-Request-Id");
    asked.Open();
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(JsonReply(R"({"id":"cmpl-)" + id + R"(","model":"policy-v11-0123456789ab"})"));
  });
  Wire wire = Connect();
  wire.Send(
      Post("/v1/completions", R"({"model":"policy","prompt":["a","b"],"request_id":"mine"})"));
  EXPECT_TRUE(asked.Wait());
  door_->SetTable(On(12));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.body, R"({"id":"cmpl-mine","model":"policy"})");
  EXPECT_EQ(id.size(), 32u);
  EXPECT_EQ(told, R"({"request_ids":["cmpl-)" + id + R"(-0","cmpl-)" + id + R"(-1"]})");
  EXPECT_TRUE(BecomesQuiet());
  Stop();
}

TEST_F(InFlightTest, AVllmWithoutDevModeFinishes) {
  kind_ = EngineKind::kVllm;
  Start(
      [&](const Message& request, Wire& wire) {
        EXPECT_EQ(request.Get("X-Request-Id"), "mine");
        return wire.Send(JsonReply("{}"));
      },
      false);
  const Message reply =
      Ask(Post("/v1/chat/completions", R"({"model":"policy"})", "X-Request-Id: mine\r\n"));
  EXPECT_TRUE(reply.Get("X-Lorry-In-Flight").starts_with("finish_on_old; ")) << reply.head;
  Stop();
}

// As vLLM 0.32 calls them after X-Request-Id.
TEST_F(InFlightTest, VllmCallsARequestByItsRoute) {
  kind_ = EngineKind::kVllm;
  const std::pair<const char*, const char*> kRoutes[] = {
      {"/v1/completions", "cmpl-*-0"},
      {"/v1/chat/completions", "chatcmpl-*"},
      {"/v1/messages", "chatcmpl-*"},
      {"/inference/v1/generate", "generate-tokens-*"}};
  for (const auto& [path, called] : kRoutes) {
    Gate asked, aborted;
    std::string id, told, key;
    Start([&](const Message& request, Wire& wire) {
      if (request.path() == "/abort_requests") {
        if (told.empty()) told = request.body;
        key = request.Get("Authorization");
        wire.Send(JsonReply("{}"));
        aborted.Open();
        return true;
      }
      id = request.Get("X-Request-Id");
      asked.Open();
      EXPECT_TRUE(aborted.Wait());
      return wire.Send(JsonReply("{}"));
    });
    EngineFacts facts{.base_models = {"base"}, .control_authorization = "Bearer key"};
    facts.aborts_waiting = true;
    door_->SetEngineFacts(facts);
    Wire wire = Connect();
    wire.Send(Post(path, R"({"model":"policy"})"));
    EXPECT_TRUE(asked.Wait()) << path;
    door_->SetTable(On(12));
    EXPECT_EQ(ReadMessage(wire).status(), 200);
    EXPECT_TRUE(BecomesQuiet());
    std::string wanted = called;
    wanted.replace(wanted.find('*'), 1, id);
    EXPECT_EQ(told, R"({"request_ids":[")" + wanted + "\"]}") << path;
    EXPECT_EQ(key, "Bearer key");
    Stop();
  }
}

TEST_F(InFlightTest, SaysWhyARequestCanOnlyFinish) {
  const auto why = [this](std::string_view path, const std::string& body) {
    StartOn([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); },
            {.aborts_waiting = true});
    std::string said = Ask(Post(path, body)).Get("X-Lorry-In-Flight");
    Stop();
    return said;
  };
  EXPECT_EQ(why("/v1/messages", R"({"model":"base:policy"})"),
            "finish_on_old; SGLang takes no id on this route");
  EXPECT_EQ(why("/v1/embeddings", R"({"model":"policy","input":"a"})"), "")
      << "what computes no tokens is over soon, and nobody waits for more";
  rule_ = InFlightMode::kResumeOnNew;
  EXPECT_EQ(why("/v1/chat/completions", R"({"model":"policy"})"),
            "finish_on_old; only SGLang's /generate is resumed");
  EXPECT_EQ(
      why("/generate",
          R"({"lora_path":"policy","input_ids":[1],"sampling_params":{"max_new_tokens":9},"stream":true})"),
      "finish_on_old; --incremental-streaming-output");
  kind_ = EngineKind::kVllm;
  for (const char* path : {"/v1/responses", "/v1/chat/completions", "/v1/completions"}) {
    EXPECT_EQ(why(path, R"({"model":"policy","use_beam_search":"yes"})"),
              "finish_on_old; vLLM does not tell how it calls this request")
        << path;
  }
  EXPECT_EQ(
      why("/v1/completions", R"({"model":"policy","n":)" + std::to_string(kMaxBatch + 1) + "}"),
      "finish_on_old; vLLM does not tell how it calls this request");
}

TEST_F(InFlightTest, VllmsRequestKeepsAnIdThatIsTooLongToGiveBack) {
  kind_ = EngineKind::kVllm;
  Start([](const Message& request, Wire& wire) {
    return wire.Send(JsonReply(R"({"id":"cmpl-)" + request.Get("X-Request-Id") + "\"}"));
  });
  const auto ask = [this](size_t bytes) {
    const std::string id(bytes, 'i');
    return Ask(Post("/v1/completions", R"({"model":"policy"})", "X-Request-Id: " + id + "\r\n"));
  };
  EXPECT_EQ(After(ask(kMaxIdBytes).body, "cmpl-").size(), kMaxIdBytes);
  EXPECT_EQ(After(ask(kMaxIdBytes + 1).body, "cmpl-").size(), 32u);
}

}  // namespace
}  // namespace lorry::door
