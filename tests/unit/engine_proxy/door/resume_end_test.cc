// How resumed requests end where nothing goes on: what their client is told, and that they count until
// the engine has ended them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/resume_fixture.h"

namespace lorry::door {
namespace {

using namespace lorry::door::testing;

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
  const std::string refusal = JsonReply(R"({"error":{"message":"too long"}})", 400);
  for (const std::string& reply : {refusal, JsonReply(Said("x", "9", 1, kLength))}) {
    Start({[this](const auto& rid) {
             door_->SetTable(On(12));
             return StreamHead() + Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
           },
           [&](const auto&) { return reply; }});
    const std::string body = Ask(Generation(true)).body;
    EXPECT_NE(body.find(R"("type":"abort")"), std::string::npos) << body;
    EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
    Stop();
    asked_.clear();
  }
}

// What the client has seen of it cannot be taken back for the abort.
TEST_F(ResumeTest, AContinuationThatBreaksBehindItsFirstEventIsCut) {
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, kAborted))) + Chunk("");
         },
         [this](const auto& rid) {
           wire_->Send(StreamHead() + Chunk(Event(Said(rid, "9", 1, "null"))));
           wire_->Close();
           return std::string();
         }});
  Wire wire = Connect();
  wire.Send(Generation(true));
  const std::string reply = wire.ReadAll();
  EXPECT_NE(reply.find("[7,9]"), std::string::npos) << reply;
  EXPECT_EQ(reply.find("[DONE]"), std::string::npos) << reply;
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ENGINE_BROKE_OFF"));
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
  EXPECT_EQ(door_->pieces_heard(), 0u) << "no engine was at work";
}

TEST_F(ResumeTest, AStreamThatBreaksBeforeItsFirstEventIsAnswered) {
  Start({[](const auto&) { return StreamHead() + "no chunk\r\n"; }});
  const Message reply = Ask(Generation(true));
  EXPECT_EQ(reply.status(), 502);
  EXPECT_EQ(reply.Get("X-Lorry-Reason"), "ENGINE_REPLY_INVALID");
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

TEST_F(ResumeTest, OneThatEndsWithoutATokenSaysItsVersion) {
  Start({[](const auto& rid) { return JsonReply(Said(rid, "", 0, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.status(), 200);
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11");
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

TEST_F(ResumeTest, WhatTheDoorGaveUpCountsUntilTheEngineHasEndedAndGoesOnNoMore) {
  options_.limits.engine_silence_ms = 20;
  for (const bool stream : {false, true}) {
    Gate go;
    Start({[&](const auto& rid) {
      EXPECT_TRUE(go.Wait());
      return JsonReply(Said(rid, "7", 1, kAborted));
    }});
    EXPECT_EQ(Ask(Generation(stream)).status(), 504);
    WaitForThreads();
    EXPECT_EQ(InFlight(11), 1u) << stream;
    door_->SetTable(On(12));
    go.Open();
    EXPECT_TRUE(Eventually([this] { return door_->Recent(9).size() == 3; }));
    const std::vector<Explained> all = door_->Recent(9);  // a refused one may be put down last
    EXPECT_EQ(std::ranges::count(all, 504, &Explained::status), 1);
    EXPECT_EQ(asked_.size(), 1u);
    Stop();
    asked_.clear();
  }
}

TEST_F(ResumeTest, AReplyThatFallsSilentCountsUntilTheEngineHasEnded) {
  options_.limits.engine_silence_ms = 20;
  for (const bool stream : {false, true}) {
    Start({[&](const auto& rid) {
      const std::string half = Chunk(Event(Said(rid, "7", 1, "null"))) + "1";
      return stream ? StreamHead() + half : "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{";
    }});
    Wire wire = Connect();
    wire.Send(Generation(stream));
    const std::string reply = wire.ReadAll();
    EXPECT_NE(reply.find(stream ? "[7]" : "ENGINE_TIMEOUT"), std::string::npos) << reply;
    WaitForThreads();
    EXPECT_EQ(InFlight(11), 1u);
    engine_.reset();
    EXPECT_TRUE(BecomesQuiet());
    EXPECT_TRUE(IsNoted("ENGINE_TIMEOUT"));
    Stop();
    asked_.clear();
  }
}

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
  EXPECT_EQ(body.find("[7,8,"), std::string::npos) << body;
  EXPECT_EQ(body.find("lorry"), std::string::npos) << "one version made it all: " << body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << "its end is here, whatever breaks then";
}

TEST_F(ResumeTest, AStreamHasOneEndWhateverItSaysBefore) {
  Start({[](const auto& rid) {
    return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null")) + "data: [DONE]\n\n") + Chunk("");
  }});
  const std::string body = Ask(Generation(true)).body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
  EXPECT_EQ(body.find("[DONE]"), body.rfind("[DONE]")) << body;
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
    EXPECT_EQ(reply.status(), 400) << "it would be as large again";
    EXPECT_EQ(reply.Get("X-Lorry-Reason"), "REPLY_TOO_LARGE") << stream;
    EXPECT_NE(reply.body.find("--door-split-reply-bytes"), std::string::npos) << reply.body;
    EXPECT_EQ(reply.Get("Connection"), stream ? "close" : "keep-alive");
  }
  Wire wire = Connect();
  wire.Send(Generation(true));
  EXPECT_EQ(wire.ReadAll().find("[DONE]"), std::string::npos) << "it is cut";
  engine_.reset();
}

}  // namespace
}  // namespace lorry::door
