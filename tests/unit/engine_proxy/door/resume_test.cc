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
using testing::Eventually;
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
        aborted_ids_.push_back(After(request.body, "\"rid\":\""));
        if (!aborted_.empty()) aborted_.back()->Open();
        return true;
      }
      size_t i = 0;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        i = asked_.size();
        asked_.push_back(request.body);
        aborted_.push_back(std::make_unique<Gate>());
        wire_ = &wire;
      }
      if (i >= parts.size()) return false;
      return wire.Send(parts[i](After(request.body, "\"rid\":\"")));
    };
    StartOn(script, {.cumulative_streams = true, .aborts_waiting = true});
  }
  void WaitForAbort() {
    Gate* gate = nullptr;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      gate = aborted_.back().get();
    }
    EXPECT_TRUE(gate->Wait());
  }
  // Flips the row to `version`, and waits until the door has asked for the abort.
  void Flip(uint64_t version) {
    door_->SetTable(On(version));
    WaitForAbort();
  }
  Part FlipThen(uint64_t version, std::function<std::string(const std::string&)> answer) {
    return [this, version, answer](const std::string& rid) {
      Flip(version);
      return answer(rid);
    };
  }
  // Until each of the door's threads has done what it was given before.
  void WaitForThreads() {
    for (uint32_t i = 0; i < options_.threads; ++i) {
      EXPECT_EQ(Ask(Post("/load_lora_adapter", "{}")).status(), 403);
    }
  }
  std::mutex mutex_;
  std::vector<std::string> asked_;
  std::vector<std::unique_ptr<Gate>> aborted_;
  std::vector<std::string> aborted_ids_;
  Wire* wire_ = nullptr;  // of the part at work
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
    engine_.reset();  // the door counts what the engine has not ended
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

// Nothing of a resumed request is left to be told when no version made a token.
TEST_F(ResumeTest, OneThatEndsWithoutATokenSaysItsVersion) {
  Start({[](const auto& rid) { return JsonReply(Said(rid, "", 0, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
}

TEST_F(ResumeTest, APartWithoutTokensLeavesNoTrace) {
  const std::string nothing =
      R"({"text":"","output_ids":[],"meta_info":{"finish_reason":{"type":"abort"},"prompt_tokens":9,"completion_tokens":0}})";
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }),
         FlipThen(13, [&](const auto&) { return JsonReply(nothing); }),
         [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11, 13");
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7,9");
  EXPECT_EQ(After(reply.body, "\"prompt_tokens\":", ','), "2");
  Stop();
}

TEST_F(ResumeTest, OnlyWhatTheFlipAbortedGoesOn) {
  // It ended by itself while its row flipped; nobody's flip aborted it; it has all its tokens.
  const Part ended = [this](const auto& rid) {
    Flip(12);
    return JsonReply(Said(rid, "7", 1, kLength));
  };
  const Part aborted = [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); };
  const Part full = [this](const auto& rid) {
    Flip(12);
    return JsonReply(Said(rid, "7,8,9,10,11", 5, kAborted));
  };
  for (const Part& part : {ended, aborted, full}) {
    Start({part});
    const Message reply = Ask(Generation(false));
    EXPECT_EQ(reply.status(), 200);
    EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
    EXPECT_EQ(asked_.size(), 1u);
    Stop();
    asked_.clear();
  }
}

TEST_F(ResumeTest, TheLastOfManyVersionsFinishesIt) {
  constexpr size_t kParts = 16;
  std::vector<Part> parts;
  for (size_t i = 1; i < kParts; ++i) {
    parts.push_back(FlipThen(
        12 + i % 2, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }));
  }
  parts.push_back([this](const auto& rid) {
    door_->SetTable(On(11));
    return JsonReply(Said(rid, "8", 1, kAborted));
  });
  Start(std::move(parts));
  const Message reply = Ask(
      Post("/generate",
           R"({"lora_path":"policy","input_ids":[1],"sampling_params":{"max_new_tokens":99}})"));
  EXPECT_EQ(asked_.size(), kParts);
  EXPECT_EQ(After(reply.body, "\"completion_tokens\":", '}'), "16");
}

TEST_F(ResumeTest, AClientThatLeftIsNotResumed) {
  Start({[this](const auto& rid) {
    wire_->Send(StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))));
    WaitForAbort();  // the door knows that it has left
    door_->SetTable(On(12));
    return Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
  }});
  Wire client = Connect();
  client.Send(Generation(true));
  client.ReadUntil("[7]");
  client.Close();
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_EQ(asked_.size(), 1u);
}

TEST_F(ResumeTest, WhatTheDoorGaveUpCountsUntilTheEngineHasEnded) {
  options_.limits.engine_silence_ms = 20;
  for (const bool stream : {false, true}) {
    Gate go;
    Start({[&](const auto& rid) {
      EXPECT_TRUE(go.Wait());
      return JsonReply(Said(rid, "7", 1, kLength));
    }});
    EXPECT_EQ(Ask(Generation(stream)).status(), 504);
    WaitForThreads();
    EXPECT_EQ(InFlight(11), 1u) << stream;
    go.Open();
    EXPECT_TRUE(BecomesQuiet());
    Stop();
    asked_.clear();
  }
}

TEST_F(ResumeTest, AStreamThatFallsSilentCountsUntilTheEngineHasEnded) {
  options_.limits.engine_silence_ms = 20;
  Start({[](const auto& rid) {
    return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))) + "1";  // half of a chunk's head
  }});
  Wire wire = Connect();
  wire.Send(Generation(true));
  EXPECT_NE(wire.ReadAll().find("[7]"), std::string::npos);
  WaitForThreads();
  EXPECT_EQ(InFlight(11), 1u);
  engine_.reset();
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_EQ(door_->Recent(1).at(0).reason, "ENGINE_TIMEOUT");
}

// Whatever else an engine answers is the client's, untouched.
TEST_F(ResumeTest, WhatIsNotWhatWasAskedForPassesAsItIs) {
  const std::string said = Said("x", "7", 1, kLength);
  Start({[&](const auto&) { return JsonReply(said); },
         [&](const auto&) { return StreamHead() + Chunk(Event(said)) + Chunk(""); },
         [&](const auto&) { return JsonReply(said, 500); }});
  EXPECT_EQ(Ask(Generation(true)).body, said);
  EXPECT_EQ(Ask(Generation(false)).body, Event(said));
  const Message failed = Ask(Generation(false));
  EXPECT_EQ(failed.status(), 500);
  EXPECT_EQ(failed.body, said);
}

TEST_F(ResumeTest, NothingFollowsTheLastEvent) {
  Start({[this](const auto& rid) {
    wire_->Send(StreamHead() + Chunk(": ping\n\n" + Event(Said(rid, "7", 1, "null"))) +
                Chunk(Event(Said(rid, "7,8", 2, kLength)) + Event(Said(rid, "7,8,9", 3, "null"))));
    wire_->Close();
    return std::string();
  }});
  const std::string body = Ask(Generation(true)).body;
  EXPECT_TRUE(body.starts_with(": ping\n\n")) << body;
  EXPECT_EQ(body.find("[7,8,9]"), std::string::npos) << body;
  EXPECT_EQ(body.find("lorry"), std::string::npos) << "one version made it all: " << body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << "its end is here, whatever breaks then";
}

TEST_F(ResumeTest, AStreamCanBeAbortedInEachOfItsParts) {
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
         },
         [](const auto& rid) { return StreamHead() + Chunk(Event(Said(rid, "9", 1, "null"))); }});
  Wire wire = Connect();
  wire.Send(Generation(true));
  wire.ReadUntil("[7,9]");
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"mine"})")).status(), 200);
  EXPECT_TRUE(Eventually([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !aborted_ids_.empty() && aborted_ids_.back() == After(asked_.back(), "\"rid\":\"");
  }));
  engine_.reset();
}

TEST_F(ResumeTest, KeepsTheIdThatItBeganWith) {
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))) +
                  Chunk(Event(Said(rid, "7,8", 2, kAborted))) + Chunk("");
         },
         [](const auto& rid) {
           return StreamHead() + Chunk(Event(Said(rid, "9", 1, kLength))) + Chunk("");
         }});
  const Message reply = Ask(Post(
      "/generate",
      R"({"lora_path":"policy","input_ids":[1],"sampling_params":{"max_new_tokens":9},"stream":true})"));
  const std::string id = After(reply.body, "\"id\":\"");
  EXPECT_EQ(id, After(asked_.at(0), "\"rid\":\""));
  EXPECT_EQ(id, After(reply.body.substr(reply.body.find("[7,8,9]")), "\"id\":\""));
}

TEST_F(ResumeTest, CountsNoVersionWhileItsRowIsHeld) {
  proxy::DoorTable held = On(11);
  held.rows[0].mode = fleet::RowMode::kHeld;
  held.rows[0].target = EngineName();
  Start({FlipThen(12,
                  [&](const auto& rid) {
                    door_->SetTable(held);
                    return JsonReply(Said(rid, "7", 1, kAborted));
                  }),
         [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  Wire wire = Connect();
  wire.Send(Generation(false));
  EXPECT_TRUE(Eventually([this] { return !asked_.empty() && InFlight(11) == 0; }));
  door_->SetTable(On(12));
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Version"), "11, 12");
  Stop();
}

TEST_F(ResumeTest, AnswersWithinWhatItMayHold) {
  options_.limits.split_reply_bytes = 1024;
  const std::string large(4096, 'x');
  Start({[&](const auto&) { return JsonReply(large); },
         [&](const auto&) { return StreamHead() + Chunk("data: " + large); },
         [&](const auto& rid) {
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))) + Chunk("data: " + large);
         }});
  for (const bool stream : {false, true}) {
    const Message reply = Ask(Generation(stream));
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "DOOR_FULL") << stream;
    EXPECT_EQ(reply.Get("Connection"), stream ? "close" : "keep-alive");
  }
  Wire wire = Connect();
  wire.Send(Generation(true));
  EXPECT_EQ(wire.ReadAll().find("[DONE]"), std::string::npos) << "it is cut";
  engine_.reset();
}

}  // namespace
}  // namespace lorry::door
