// Requests that go on under the version that their row flipped to.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/resume_fixture.h"

namespace lorry::door {
namespace {

using namespace lorry::door::testing;

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
  const auto in_queue = [](const auto& rid) {
    return JsonReply(
        R"({"text":"","output_ids":[],"meta_info":{"id":")" + rid +
        R"(","finish_reason":{"type":"abort","message":"Abort in waiting queue"},"input_token_logprobs":[],"input_top_logprobs":[],"completion_tokens":0}})");
  };
  const auto whole = [](const auto& rid) {
    std::string said = Said(rid, "9", 1, kLength);
    return JsonReply(said.insert(
        said.find("\"prompt_tokens\""),
        R"("input_token_logprobs":[[null,1,null],[-0.5,2,null]],"input_top_logprobs":[null,[]],)"));
  };
  Start({FlipThen(12, in_queue), whole});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  EXPECT_EQ(After(asked_.at(1), "\"input_ids\":", ']'), "[1,2");
  EXPECT_EQ(After(reply.body, "\"prompt_tokens\":", ','), "2");
  EXPECT_NE(reply.body.find(R"("input_token_logprobs":[[null,1,null],[-0.5,2,null]])"),
            std::string::npos)
      << reply.body;
  EXPECT_NE(reply.body.find(R"("input_top_logprobs":[null,[]])"), std::string::npos);
  EXPECT_EQ(reply.body.find("spans"), std::string::npos) << "one version made it all";
}

// It is aborted while it waits, where that can be, and all of it is the new version's.
TEST_F(ResumeTest, AStreamThatHadNoTokenBeginsAnew) {
  Start({FlipThen(12,
                  [](const auto& rid) {
                    return StreamHead() + Chunk(Event(Said(rid, "", 0, kAborted))) + Chunk("");
                  }),
         [](const auto& rid) {
           return StreamHead() + Chunk(Event(Said(rid, "9", 1, kLength))) + Chunk("");
         }});
  const Message reply = Ask(Generation(true));
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  EXPECT_EQ(reply.body.find("abort"), std::string::npos) << reply.body;
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[9");
}

// As SGLang aborts a stream that it had put back into its queue.
TEST_F(ResumeTest, AStreamWhoseAbortListsOnlyItsLastTokenEndsWithIt) {
  Start({[this](const auto& rid) {
    wire_->Send(StreamHead() + Chunk(Event(Said(rid, "7,8,9", 3, "null"))));
    Flip(12);
    return Chunk(Event(Said(rid, "9", 3, kAborted)) + "data: [DONE]\n\n") + Chunk("");
  }});
  const Message reply = Ask(Post(
      "/generate",
      R"({"lora_path":"policy","input_ids":[1],"sampling_params":{"max_new_tokens":9},"stream":true})",
      "X-Lorry-Body: 1\r\n"));
  EXPECT_EQ(asked_.size(), 1u) << "nobody knows behind which tokens to go on";
  EXPECT_NE(reply.body.find(R"("output_ids":[9],)"), std::string::npos) << reply.body;
  EXPECT_NE(reply.body.find(R"("spans":[{"start":0,"end":3,"version":11,"run":1}])"),
            std::string::npos)
      << reply.body;
  EXPECT_TRUE(reply.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(ResumeTest, AsOftenAsItsRowFlips) {
  Start({FlipThen(12, [](const auto& rid) { return JsonReply(Said(rid, "7", 1, kAborted)); }),
         FlipThen(13, [](const auto& rid) { return JsonReply(Said(rid, "8", 1, kAborted)); }),
         [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  const Message reply = Ask(Generation(false));
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7,8,9");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "11, 12, 13");
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

const std::string& AbortAll() {
  static const auto& text = *new std::string(Post("/abort_request", R"({"abort_all":true})"));
  return text;
}

TEST_F(ResumeTest, WhatIsAbortedWithAllOthersIsNotResumed) {
  options_.on_call = [](EngineCall, CallTicket) {};
  for (const std::string& call :
       {AbortAll(),
        Post("/update_weight_version", R"({"new_version":"2","abort_all_requests":true})")}) {
    Start({[&](const auto& rid) {
      Flip(12);
      EXPECT_EQ(Ask(call).status(), 200);
      return JsonReply(Said(rid, "7", 1, kAborted));
    }});
    const Message reply = Ask(Generation(false));
    EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7") << call;
    EXPECT_EQ(asked_.size(), 1u);
    Stop();
    asked_.clear();
  }
}

TEST_F(ResumeTest, WhatTheEngineDidNotAbortWithAllOthersIsResumed) {
  options_.on_call = [](EngineCall, CallTicket) {};
  control_status_ = 500;
  Start({[this](const auto& rid) {
           Flip(12);
           EXPECT_EQ(Ask(AbortAll()).status(), 500);
           return JsonReply(Said(rid, "7", 1, kAborted));
         },
         [](const auto& rid) { return JsonReply(Said(rid, "9", 1, kLength)); }});
  EXPECT_EQ(After(Ask(Generation(false)).body, "\"output_ids\":", ']'), "[7,9");
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

// Its client would take the rest for another reply.
TEST_F(ResumeTest, AFieldsNameDoesNotEndTheHeadThatTellsIt) {
  Start({[](const auto& rid) { return JsonReply(Said(rid, "7", 1, kLength)); }});
  const Message reply =
      Ask(Post("/generate",
               R"({"lora_path":"policy","input_ids":[1],"a\r\nContent-Length: 0\r\n\r\nB":1})"));
  EXPECT_EQ(reply.Get("X-Lorry-In-Flight"), "finish_on_old; an unknown field");
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7");
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

// Whatever else an engine answers is the client's, untouched.
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
  // Among them: the door's own abort of the first part may arrive later than the client's.
  EXPECT_TRUE(Eventually([this] {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::ranges::count(aborted_ids_, After(asked_.back(), "\"rid\":\"")) > 0;
  }));
  engine_.reset();
}

TEST_F(ResumeTest, SaysInEachEventWhichVersionMadeTheLastOfItsTokens) {
  options_.weight_versions = true;
  Start({[this](const auto& rid) {
           door_->SetTable(On(12));
           return StreamHead() + Chunk(Event(Said(rid, "7", 1, "null"))) +
                  Chunk(Event(Said(rid, "7,8", 2, kAborted))) + Chunk("");
         },
         [](const auto& rid) {
           return StreamHead() + Chunk(Event(Said(rid, "9", 1, "null"))) +
                  Chunk(Event(Said(rid, "9,10", 2, kLength))) + Chunk("");
         }});
  const Message reply = Ask(Generation(true));
  const auto version = [&](const std::string& ids) {
    return After(reply.body.substr(reply.body.find(ids)), "\"weight_version\":\"");
  };
  EXPECT_EQ(version("[7]"), "11");
  EXPECT_EQ(version("[7,8,9]"), "12");
  EXPECT_EQ(version("[7,8,9,10]"), "12");
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
  Start({FlipThen(12,
                  [this](const auto& rid) {
                    door_->SetTable(HeldRow());
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

TEST_F(ResumeTest, WhatItsClientAbortsWhileItsRowIsHeldGoesOnNoMore) {
  Start({FlipThen(12, [this](const auto& rid) {
    door_->SetTable(HeldRow());
    return JsonReply(Said(rid, "7", 1, kAborted));
  })});
  Wire wire = Connect();
  wire.Send(Generation(false));
  EXPECT_TRUE(Eventually([this] { return !asked_.empty() && InFlight(11) == 0; }));
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":"mine"})")).status(), 200);
  door_->SetTable(On(12));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(After(reply.body, "\"output_ids\":", ']'), "[7");
  EXPECT_NE(reply.body.find("abort"), std::string::npos);
  EXPECT_EQ(asked_.size(), 1u);
  Stop();
}

}  // namespace
}  // namespace lorry::door
