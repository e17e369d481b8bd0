// Requests that go on under the version that their row flipped to.
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/flip_fixture.h"

namespace lorry::door {
namespace {

using fleet::InFlightRule;
using testing::After;
using testing::Chunk;
using testing::FlipTest;
using testing::Gate;
using testing::JsonReply;
using testing::Message;
using testing::NameOf;
using testing::Post;
using testing::ReadMessage;
using testing::ScriptedEngine;
using testing::StreamHead;
using testing::Wire;

std::string Generation(bool stream, const std::string& more = "") {
  return Post("/generate",
              R"({"lora_path":"policy","input_ids":[1,2],"sampling_params":{"max_new_tokens":5)" +
                  more + R"(},"rid":"mine","stream":)" + (stream ? "true}" : "false}"));
}

std::string Said(const std::string& rid, const std::string& ids, int tokens,
                 const std::string& finish) {
  return R"({"text":"t","output_ids":[)" + ids + R"(],"meta_info":{"id":")" + rid +
         R"(","finish_reason":)" + finish + R"(,"prompt_tokens":2,"completion_tokens":)" +
         std::to_string(tokens) + "}}";
}
const char* const kAborted = R"({"type":"abort","message":"Aborted"})";
const char* const kLength = R"({"type":"length","length":5})";

std::string Event(const std::string& json) { return "data: " + json + "\n\n"; }

class ResumeTest : public FlipTest {
 protected:
  ResumeTest() : FlipTest(InFlightRule::kResumeOnNew) {}
  // `parts[i]` answers the i-th part; an abort opens the gate that it waits for.
  using Part = std::function<std::string(const std::string& rid)>;
  void Start(std::vector<Part> parts) {
    const auto script = [this, parts](const Message& request, Wire& wire) {
      if (request.path() == "/abort_request") {
        wire.Send(JsonReply(""));
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!aborted_.empty()) aborted_.back()->Open();
        return true;
      }
      size_t i = 0;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        i = asked_.size();
        asked_.push_back(request.body);
        aborted_.push_back(std::make_unique<Gate>());
      }
      if (i >= parts.size()) return false;
      return wire.Send(parts[i](After(request.body, "\"rid\":\"")));
    };
    StartOn(script, {.cumulative_streams = true, .aborts_waiting = true});
  }
  // Flips the row to `version`, and waits until the door has asked for the abort.
  void Flip(uint64_t version) {
    door_->SetTable(On(version));
    Gate* gate = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      gate = aborted_.back().get();
    }
    EXPECT_TRUE(gate->Wait());
  }
  Part FlipThen(uint64_t version, std::function<std::string(const std::string&)> answer) {
    return [this, version, answer](const std::string& rid) {
      Flip(version);
      return answer(rid);
    };
  }
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::vector<std::unique_ptr<Gate>> aborted_;
};

TEST_F(ResumeTest, GoesOnBehindItsTokensUnderTheNewVersion) {
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7,8", 2, kAborted)); }),
         [](const auto& rid) { return JsonReply(Said(rid, "9,10,11", 3, kLength)); }});
  const Message reply = Ask(Generation(false));
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(After(asked_[1], "\"lora_path\":\""), NameOf("policy", 12).value);
  EXPECT_EQ(After(asked_[1], "\"input_ids\":", ']'), "[1,2,7,8");
  EXPECT_EQ(After(asked_[1], "\"max_new_tokens\":", '}'), "3");
  EXPECT_NE(After(asked_[0], "\"rid\":\""), After(asked_[1], "\"rid\":\""));
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11, 12");
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7,8,9,10,11");
  EXPECT_EQ(After(reply.body, "\"text\":\""), "tt");
  EXPECT_EQ(After(reply.body, "\"id\":\""), "mine");
  EXPECT_EQ(After(reply.body, "\"completion_tokens\":", '}'), "5");
  EXPECT_EQ(
      After(reply.body, "\"spans\":", ']'),
      R"([{"start":0,"end":2,"version":11,"run":1},{"start":2,"end":5,"version":12,"run":1})");
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(ResumeTest, AStreamGoesOnAsOne) {
  Start({[this](const auto& rid) {
           // One token is out; the flip's abort comes with it.
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))) +
                  Chunk(Event(Said(rid, "7,8", 2, kAborted)) + "data: [DONE]\n\n") + Chunk("");
         },
         [](const auto& rid) {
           return StreamHead() + Chunk(Event(Said(rid, "9", 1, "null"))) +
                  Chunk(Event(Said(rid, "9,10", 2, kLength)) + "data: [DONE]\n\n") + Chunk("");
         }});
  const Message reply = Ask(Generation(true));
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
  const std::string& body = reply.body;
  EXPECT_EQ(body.find("abort"), std::string::npos) << body;
  size_t at = 0;
  for (
      const char* wanted :
      {"\"output_ids\":[7]", "\"output_ids\":[7,8,9]",
       R"("spans":[{"start":0,"end":2,"version":11,"run":1},{"start":2,"end":4,"version":12,"run":1}])",
       "\"output_ids\":[7,8,9,10]", "data: [DONE]\n\n"}) {
    at = body.find(wanted, at);
    ASSERT_NE(at, std::string::npos) << wanted << " in " << body;
  }
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(body.find("[DONE]"), body.rfind("[DONE]"));
}

TEST_F(ResumeTest, OneThatHadNoTokenBeginsAnew) {
  Start(
      {FlipThen(
           12,
           [](const auto& rid) {
             return JsonReply(
                 R"({"text":"","output_ids":[],"meta_info":{"id":")" + rid +
                 R"(","finish_reason":{"type":"abort","message":"Abort in waiting queue"},"completion_tokens":0}})");
           }),
       [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  EXPECT_EQ(After(asked_.at(1), "\"input_ids\":", ']'), "[1,2");
  EXPECT_EQ(After(reply.body, "\"prompt_tokens\":", ','), "2");
  EXPECT_EQ(reply.body.find("spans"), std::string::npos) << "one version made it all";
}

TEST_F(ResumeTest, AsOftenAsItsRowFlips) {
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }),
         FlipThen(13, [](const auto& rid) { return JsonReply(Said(rid, "8", 1, kAborted)); }),
         [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7,8,9");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11, 12, 13");
}

TEST_F(ResumeTest, WhatTheEngineDoesNotTakeEndsAsTheAbort) {
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }),
         [](const auto&) { return JsonReply(R"({"error":{"message":"too long"}})", 400); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7");
  EXPECT_NE(reply.body.find("abort"), std::string::npos);
}

TEST_F(ResumeTest, AStreamThatTheEngineDoesNotTakeEndsAsTheAbort) {
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
         },
         [](const auto&) { return JsonReply(R"({"error":{"message":"too long"}})", 400); }});
  const std::string body = Ask(Generation(true)).body;
  EXPECT_NE(body.find(R"("type":"abort")"), std::string::npos) << body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
}

TEST_F(ResumeTest, WhatItsClientAbortedIsNotResumed) {
  Start({[this](const auto& rid) {
    EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"mine"})")).status(), 200);
    Flip(12);
    return JsonReply(Said(rid, "7", 1, kAborted));
  }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7");
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(ResumeTest, WhatDoesNotMeanTheSameAnewFinishesAndSaysWhy) {
  Start({[this](const auto& rid) {
    door_->SetTable(On(12));
    return JsonReply(Said(rid, "7", 1, kLength));
  }});
  const Message reply = Ask(Generation(false, R"(,"stop":["x"])"));
  EXPECT_EQ(reply.Get("X-Lorry-In-Flight"), "finish_on_old; stop");
  EXPECT_EQ(engine_->requests().size(), 1u);
}

TEST_F(ResumeTest, AnEnginesRefusalPassesAsItIs) {
  Start({[](const auto&) { return JsonReply(R"({"error":{"message":"too long"}})", 400); }});
  for (bool stream : {false, true}) {
    asked_.clear();
    const Message reply = Ask(Generation(stream));
    EXPECT_EQ(reply.status(), 400);
    EXPECT_EQ(reply.body, R"({"error":{"message":"too long"}})");
    EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
  }
}

TEST_F(ResumeTest, AStreamThatBreaksBeforeItsFirstEventIsAnswered) {
  Start({[](const auto&) { return StreamHead() + "no chunk\r\n"; }});
  const Message reply = Ask(Generation(true));
  EXPECT_EQ(reply.status(), 502);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_BROKE_OFF");
  EXPECT_EQ(reply.Get("Connection"), "close");
}

TEST_F(ResumeTest, AStreamWithoutAnEventIsAnsweredInTime) {
  options_.limits.engine_silence_ms = 20;
  for (const bool says_head : {false, true}) {
    Gate told;
    Start({[&, says_head](const auto&) {
      if (!says_head) {
        EXPECT_TRUE(told.Wait());
      }
      return StreamHead();
    }});
    const Message reply = Ask(Generation(true));
    EXPECT_EQ(reply.status(), 504) << says_head;
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_TIMEOUT");
    told.Open();
    Stop();
    asked_.clear();
  }
}

TEST_F(ResumeTest, AContinuationThatBreaksBeforeItsFirstEventEndsAsTheAbort) {
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
         },
         [](const auto&) { return StreamHead() + "no chunk\r\n"; }});
  const std::string body = Ask(Generation(true)).body;
  EXPECT_NE(body.find(R"("type":"abort")"), std::string::npos) << body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
}

TEST_F(ResumeTest, CountsTheVersionThatIsAtWork) {
  Gate second, go;
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }),
         [&](const auto& rid) {
           second.Open();
           EXPECT_TRUE(go.Wait());
           return JsonReply(Said(rid, "9", 1, kLength));
         }});
  Wire wire = Connect();
  wire.Send(Generation(false));
  EXPECT_TRUE(second.Wait());
  EXPECT_EQ(InFlight(11), 0u) << "it may be unloaded";
  EXPECT_EQ(InFlight(12), 1u);
  go.Open();
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  Stop();
}

}  // namespace
}  // namespace lorry::door
