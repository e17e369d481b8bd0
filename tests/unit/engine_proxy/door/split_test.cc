// n > 1 on SGLang: n requests of one, whose replies and streams become one.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door {
namespace {

using testing::Chunk;
using testing::DoorTest;
using testing::Eventually;
using testing::Gate;
using testing::JsonReply;
using testing::Message;
using testing::Post;
using testing::ReadMessage;
using testing::StreamHead;
using testing::Wire;

// The engine's id in a request of one prompt.
std::string RidOf(const Message& request) {
  return request.body.substr(request.body.find("\"rid\":\"") + 7, 32);
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(DoorTest, SplitsSeveralCompletions) {
  StartBefore([](const Message& request, Wire& wire) {
    EXPECT_NE(request.body.find(R"("n": 1)"), std::string::npos);
    return wire.Send(JsonReply(
        R"({"choices":[{"index":0}],"usage":{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2}})"));
  });
  const Message reply = Ask(Post("/v1/completions", R"({"model":"policy","n": 3})"));
  EXPECT_EQ(
      reply.body,
      R"({"choices":[{"index":0},{"index":1},{"index":2}],"usage":{"prompt_tokens":1,"total_tokens":7,"completion_tokens":6}})");
  EXPECT_EQ(reply.Get("X-Lorry-Version"), "12");
  const auto seen = engine_->requests();
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_NE(RidOf(seen[0]), RidOf(seen[1])) << "each has its own id";
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, SplitsABatch) {
  std::atomic<int> asked{0};
  StartBefore([&](const Message& request, Wire& wire) {
    EXPECT_NE(request.body.find(R"("text":["a","b"])"), std::string::npos);
    EXPECT_NE(request.body.find(R"([{"n":1},{"n":1}])"), std::string::npos);
    const std::string rid = request.body.substr(request.body.find("\"rid\":[\"") + 8, 32);
    const std::string next = request.body.substr(request.body.find("\"rid\":[\"") + 43, 32);
    ++asked;
    return wire.Send(
        JsonReply(R"([{"p":"a","id":")" + rid + R"("},{"p":"b","id":")" + next + R"("}])"));
  });
  const Message reply = Ask(Post(
      "/generate",
      R"({"lora_path":"policy","rid":"r","text":["a","b"],"sampling_params":[{"n":2},{"n":2}]})"));
  EXPECT_EQ(reply.body, R"([{"p":"a","id":"r_0"},{"p":"a","id":"r_0"},{"p":"b","id":"r_1"},)"
                        R"({"p":"b","id":"r_1"}])");
  EXPECT_EQ(asked, 2);
}

// Each has a connection to the engine, of which other clients need some, and the proxy itself.
TEST_F(DoorTest, ARequestOfManySamplesCountsAsMany) {
  options_.limits.live_requests = 3;
  Gate ends;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.body.find("slow") != std::string::npos) {
      EXPECT_TRUE(ends.Wait());
    }
    return wire.Send(JsonReply(R"({"choices":[{"index":0}]})"));
  });
  const auto ask = [&](int n) {
    return Ask(Post("/v1/completions", R"({"model":"policy","n":)" + std::to_string(n) + "}"));
  };
  Wire slow = Connect();
  slow.Send(Post("/v1/completions", R"({"model":"policy","prompt":"slow"})"));
  ASSERT_TRUE(Eventually([&] { return engine_->requests().size() == 1; }));
  for (const int n : {3, 4}) {
    const Message full = ask(n);
    EXPECT_EQ(full.status(), 429);
    EXPECT_EQ(full.Get("X-Lorry-Reason"), "DOOR_FULL");
    EXPECT_NE(full.body.find("limit is 3 (--door-live-requests"), std::string::npos) << full.body;
  }
  EXPECT_EQ(ask(2).status(), 200);
  ends.Open();
  EXPECT_EQ(ReadMessage(slow).status(), 200);
  EXPECT_TRUE(BecomesQuiet());
  for (const int n : {3, 4, 3}) {
    EXPECT_EQ(ask(n).status(), 200)
        << "alone it may have more, and nothing is left of those before";
    EXPECT_TRUE(BecomesQuiet());
  }
}

// The longest of a rollout may last many times as long as most of its samples.
TEST_F(DoorTest, SamplesThatHaveEndedMakeRoom) {
  options_.limits.live_requests = 3;
  std::unique_ptr<Gate> ends;
  std::atomic<int> asked;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.body.find("single") != std::string::npos) return wire.Send(JsonReply("{}"));
    if (asked++ == 2) {
      EXPECT_TRUE(ends->Wait());
    }
    const bool streams = request.body.find("\"stream\":true") != std::string::npos;
    return wire.Send(streams ? StreamHead() + Chunk("data: {\"text\":\"\"}\n\n") +
                                   Chunk("data: [DONE]\n\n") + Chunk("")
                             : JsonReply(R"({"text":""})"));
  });
  for (const char* stream : {"false", "true"}) {
    ends = std::make_unique<Gate>();
    asked = 0;
    Wire wire = Connect();
    wire.Send(Post("/generate", R"({"lora_path":"policy","sampling_params":{"n":3},"stream":)" +
                                    std::string(stream) + "}"));
    ASSERT_TRUE(Eventually([&] { return asked == 3; }));
    EXPECT_TRUE(Eventually([&] {
      return Ask(Post("/generate", R"({"lora_path":"policy","text":"single"})")).status() == 200;
    })) << stream;
    // For unloads it counts as all of them until its end; the single one ends behind its reply.
    EXPECT_TRUE(Eventually([&] { return InFlight(12) == 3; }));
    ends->Open();
    EXPECT_EQ(ReadMessage(wire).status(), 200);
    EXPECT_TRUE(BecomesQuiet());
  }
}

TEST_F(DoorTest, BoundsTheSamplesOfOneRequest) {
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  EXPECT_EQ(Ask(Post("/v1/completions", R"({"model":"policy","prompt":"a","n":65})"))
                .Get("X-Lorry-Reason"),
            "N_UNSUPPORTED_ON_SGLANG");
  std::string batch = R"({"model":"policy","n":64,"prompt":["a")";
  for (int i = 0; i < 64; ++i) batch += R"(,"a")";
  EXPECT_EQ(Ask(Post("/v1/completions", batch + "]}")).Get("X-Lorry-Reason"),
            "N_UNSUPPORTED_ON_SGLANG");
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(DoorTest, TellsAReplyThatIsTooLargeFromADoorThatIsFull) {
  constexpr size_t kLarge = 4096;
  StartBefore([](const Message& request, Wire& wire) {
    const std::string event = "data: " + std::string(kLarge, 'x');
    const bool streams = request.body.find("\"stream\":true") != std::string::npos;
    return wire.Send(streams ? StreamHead() + Chunk(event) + Chunk("") : JsonReply(event));
  });
  const auto answer = [&](const char* reason, int status, const char* flag) {
    StartBefore(engine_->port());
    for (const char* stream : {"false", "true"}) {
      const Message reply = Ask(Post(
          "/v1/completions", R"({"model":"policy","n":2,"stream":)" + std::string(stream) + "}"));
      EXPECT_EQ(reply.Get("X-Lorry-Reason"), reason) << stream;
      EXPECT_EQ(reply.status(), status) << stream;
      EXPECT_NE(reply.body.find(flag), std::string::npos) << reply.body;
    }
  };
  options_.limits.split_reply_bytes = kLarge / 2;
  answer("REPLY_TOO_LARGE", 400, "--door-split-reply-bytes");
  options_.limits.split_reply_bytes = 2 * kLarge;
  options_.limits.all_bodies_bytes = kLarge / 2;
  answer("DOOR_FULL", 503, "--door-all-bodies-bytes");
}

// Both children have begun before either goes on, so neither waits for the other's end.
TEST_F(DoorTest, MergesStreamsAsTheyCome) {
  Gate seen;
  std::atomic<int> begun{0};
  StartBefore([&](const Message& request, Wire& wire) {
    const std::string id = RidOf(request);
    const auto event = [&](const std::string& text) {
      return Chunk(R"(data: {"id":")" + id + R"(","model":"base","choices":[{"index":0,"text":")" +
                   text + "\"}]}\n\n");
    };
    ++begun;
    wire.Send(StreamHead() + event("first"));
    EXPECT_TRUE(seen.Wait());
    const std::string usage =
        R"(data: {"id":")" + id +
        R"(","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}})";
    return wire.Send(event("last") + Chunk(usage + "\n\ndata: [DO") + Chunk("NE]\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(
      Post("/v1/completions", R"({"model":"policy","n":2,"stream":1,"rid":"mine","prompt":"a"})"));
  const std::string head = wire.ReadUntil("\r\n\r\n");
  EXPECT_NE(head.find("200"), std::string::npos);
  EXPECT_NE(head.find("text/event-stream"), std::string::npos);
  EXPECT_NE(head.find("X-Lorry-Version: 12\r\n"), std::string::npos);
  std::string text;
  while (Count(text, "first") < 2) {
    text += wire.ReadUntil("\n\n");
    ASSERT_FALSE(text.empty());
  }
  EXPECT_EQ(begun, 2);
  seen.Open();
  text += wire.ReadUntil("0\r\n\r\n");
  for (const char* part : {R"("index":0,"text":"first")", R"("index":1,"text":"first")",
                           R"("index":0,"text":"last")", R"("index":1,"text":"last")",
                           R"("completion_tokens":4,"total_tokens":7)", "data: [DONE]"}) {
    EXPECT_EQ(Count(text, part), 1u) << part << " in " << text;
  }
  EXPECT_EQ(Count(text, R"("id":"mine")"), 5u);
  EXPECT_EQ(Count(text, R"("model":"policy")"), 4u);
  EXPECT_TRUE(BecomesQuiet());
}

// Every sample that has answered is aborted by its own id, and all are read to their ends.
TEST_F(DoorTest, AbortsEachSampleWhenTheClientLeaves) {
  Gate left;
  std::atomic<int> aborted{0};
  std::atomic<int> begun{0};
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      ++aborted;
      return wire.Send(JsonReply(""));
    }
    wire.Send(StreamHead() + Chunk("data: {\"text\":\"\"}\n\n"));
    ++begun;
    EXPECT_TRUE(Eventually([&] { return aborted == 3; }));
    EXPECT_EQ(InFlight(12), 3u) << "each sample, until all are read";
    return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
  });
  {
    Wire wire = Connect();
    wire.Send(Post("/generate",
                   R"({"text":"a","lora_path":"policy","stream":true,"sampling_params":{"n":3}})"));
    for (int i = 0; i < 3; ++i) wire.ReadUntil("\"index\":");
    EXPECT_TRUE(Eventually([&] { return begun == 3; }));
  }
  EXPECT_TRUE(Eventually([&] { return aborted == 3; }));
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, AnswersAStreamOfSamplesInTheEnginesWordsWhereItRefuses) {
  StartBefore([&](const Message&, Wire& wire) {
    return wire.Send(JsonReply(R"({"error":{"message":"no"}})", 400));
  });
  const std::string request =
      Post("/generate", R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})");
  const Message reply = Ask(request);
  EXPECT_EQ(reply.status(), 400);
  EXPECT_EQ(reply.body, R"({"error":{"message":"no"}})");
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, SaysInTheStreamThatOneSampleWasRefused) {
  Gate begun;
  std::atomic<int> asked{0};
  StartBefore([&](const Message&, Wire& wire) {
    if (asked++ > 0) {
      EXPECT_TRUE(begun.Wait());
      return wire.Send(JsonReply(R"({"error":{"code":503}})", 503));
    }
    wire.Send(StreamHead() + Chunk("data: {\"text\":\"\"}\n\n"));
    EXPECT_TRUE(begun.Wait());
    return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})"));
  wire.ReadUntil("\"index\":");
  begun.Open();
  const std::string rest = wire.ReadUntil("0\r\n\r\n");
  EXPECT_EQ(Count(rest, R"(data: {"error":{"code":503}})"), 1u);
  EXPECT_EQ(Count(rest, "data: [DONE]"), 1u);
}

// An engine that breaks off, or sends what is no event, ends the reply where it is.
TEST_F(DoorTest, CutsAStreamOfSamplesThatCannotGoOn) {
  for (const char* nonsense : {"", "data: {\"index\":9}\n\n", "data: no event\n\n"}) {
    Gate told;
    StartBefore([&](const Message& request, Wire& wire) {
      if (request.path() == "/abort_request") return wire.Send(JsonReply(""));
      wire.Send(StreamHead() + Chunk("data: {\"text\":\"\"}\n\n"));
      EXPECT_TRUE(told.Wait());
      if (*nonsense != '\0') wire.Send(Chunk(nonsense) + Chunk(""));
      return false;
    });
    Wire wire = Connect();
    wire.Send(
        Post("/generate", R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})"));
    EXPECT_TRUE(wire.ReadUntil("\"index\":").starts_with("HTTP/1.1 200"));
    told.Open();
    EXPECT_EQ(wire.ReadAll().find("[DONE]"), std::string::npos) << nonsense;
    EXPECT_TRUE(BecomesQuiet());
    EXPECT_TRUE(door_->Recent(1).at(0).reason.starts_with("ENGINE_")) << nonsense;
    door_.reset();
  }
}

TEST_F(DoorTest, RefusesAStreamOfSamplesThatCannotGoOnBeforeItsHeadIsOut) {
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") return wire.Send(JsonReply(""));
    return wire.Send(StreamHead() + Chunk("data: no event\n\n") + Chunk(""));
  });
  const Message reply =
      Ask(Post("/generate", R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})"));
  EXPECT_EQ(reply.status(), 502);
  EXPECT_NE(reply.body.find("ENGINE_REPLY_INVALID"), std::string::npos) << reply.body;
}

// A client that takes nothing holds the children back: what waits for it is bounded.
TEST_F(DoorTest, HoldsSamplesBackForASlowClient) {
  constexpr int kEvents = 4096;
  std::atomic<int> sent{0};
  const std::string event = "data: {\"text\":\"" + std::string(16 * 1024, 'x') + "\"}\n\n";
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") return wire.Send(JsonReply(""));
    wire.Send(StreamHead());
    for (int i = 0; i < kEvents && wire.Send(Chunk(event)); ++i) ++sent;
    return wire.Send(Chunk(""));
  });
  Wire wire = Wire::Connect(door_->port(), 4096);
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true,"sampling_params":{"n":2}})"));
  wire.ReadUntil("\"index\":");
  // Until the children stand still: many looks in turn find the same.
  int before = -1;
  int same = 0;
  EXPECT_TRUE(Eventually([&] {
    same = std::exchange(before, sent.load()) == sent ? same + 1 : 0;
    return same == 100;
  }));
  EXPECT_LT(sent, kEvents) << "of twice as many";
  wire.Close();
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(DoorTest, AbortsOneOfABatchByTheIdThatItWasGiven) {
  Gate begun;
  std::vector<std::string> aborted;
  std::string second;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      aborted.push_back(RidOf(request));
      return wire.Send(JsonReply(""));
    }
    second = request.body.substr(request.body.find("\"rid\":[\"") + 43, 32);
    wire.Send(StreamHead() + Chunk("data: {\"meta_info\":{\"id\":\"" + second + "\"}}\n\n"));
    EXPECT_TRUE(begun.Wait());
    return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
  });
  Wire wire = Connect();
  const std::string rid(200, 'r');
  wire.Send(Post("/generate", R"({"text":["a","b"],"lora_path":"policy","stream":true,"rid":")" +
                                  rid + R"("})"));
  wire.ReadUntil("\"id\":\"" + rid + "_1\"");
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":")" + rid + R"(x"})")).status(), 200);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":""})")).status(), 200);
  EXPECT_EQ(Ask(Post("/abort_request", R"({"rid":")" + rid + R"(_1"})")).status(), 200);
  EXPECT_EQ(aborted, std::vector<std::string>{second});
  begun.Open();
  wire.ReadUntil("0\r\n\r\n");
}

// An id that is empty names nothing: one abort of nothing would otherwise end everybody's.
TEST_F(DoorTest, AbortsNothingThatHasNoId) {
  Gate ends;
  std::atomic<int> aborts{0};
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      ++aborts;
      return wire.Send(JsonReply(""));
    }
    wire.Send(StreamHead() + Chunk("data: 1\n\n"));
    EXPECT_TRUE(ends.Wait());
    return wire.Send(Chunk(""));
  });
  std::vector<Wire> streams;
  for (const char* rid : {"", R"(,"rid":"")", R"(,"rid":null)"}) {
    streams.push_back(Connect());
    streams.back().Send(Post(
        "/generate", R"({"text":"a","lora_path":"policy","stream":true)" + std::string(rid) + "}"));
    streams.back().ReadUntil("data: 1\n\n");
  }
  for (const char* body : {"{}", R"({"rid":""})", R"({"rid":null})", R"({"rid":[]})"}) {
    EXPECT_EQ(Ask(Post("/abort_request", body)).status(), 200) << body;
  }
  EXPECT_EQ(aborts, 0);
  ends.Open();
  for (Wire& wire : streams) wire.ReadUntil("0\r\n\r\n");
  EXPECT_TRUE(BecomesQuiet());
}

// SGLang leaks the adapter of a request that is aborted while it is queued (sglang#34205), and the
// prompts of a batch leave its queue one by one.
TEST_F(DoorTest, AbortsOfABatchOnlyWhatHasBegunToAnswer) {
  for (const char* n : {"", R"(,"sampling_params":{"n":2})"}) {
    std::mutex mutex;
    std::set<std::string> begun;
    std::set<std::string> aborted;
    const auto is_aborted = [&](const std::string& id) {
      const std::lock_guard lock(mutex);
      return aborted.contains(id);
    };
    const auto begin = [&](const std::string& id) {
      const std::lock_guard lock(mutex);
      begun.insert(id);
    };
    StartBefore([&](const Message& request, Wire& wire) {
      if (request.path() == "/abort_request") {
        const std::lock_guard lock(mutex);
        EXPECT_TRUE(begun.contains(RidOf(request))) << "it may still have been queued";
        aborted.insert(RidOf(request));
        return wire.Send(JsonReply(""));
      }
      const size_t rids = request.body.find("\"rid\":[\"") + 8;
      const std::string first = request.body.substr(rids, 32);
      const std::string second = request.body.substr(rids + 35, 32);
      begin(second);
      wire.Send(StreamHead() +
                Chunk("data: {\"index\":1,\"meta_info\":{\"id\":\"" + second + "\"}}\n\n"));
      EXPECT_TRUE(Eventually([&] { return is_aborted(second); }));
      EXPECT_FALSE(is_aborted(first));
      begin(first);
      const std::string event = "data: {\"index\":0,\"meta_info\":{\"id\":\"" + first + "\"}}\n\n";
      wire.Send(Chunk(event.substr(0, 50)));  // within the id
      wire.Send(Chunk(event.substr(50)));
      EXPECT_TRUE(Eventually([&] { return is_aborted(first); }));
      return wire.Send(Chunk("data: [DONE]\n\n") + Chunk(""));
    });
    {
      Wire wire = Connect();
      wire.Send(
          Post("/generate",
               std::string(R"({"text":["a","b"],"lora_path":"policy","stream":true)") + n + "}"));
      wire.ReadUntil("\"index\":");
    }
    EXPECT_TRUE(BecomesQuiet());
    door_.reset();
  }
}

// The chunk that ends the reply is missing: no client takes what it got of one prompt for an answer
// to all.
TEST_F(DoorTest, CutsAStreamedBatchWhoseEngineDies) {
  StartBefore([&](const Message& request, Wire& wire) {
    const std::string first = request.body.substr(request.body.find("\"rid\":[\"") + 8, 32);
    wire.Send(StreamHead() + Chunk("data: {\"meta_info\":{\"id\":\"" + first + "\"}}\n\n"));
    return false;
  });
  Wire wire = Connect();
  wire.Send(Post("/generate", R"({"text":["a","b"],"lora_path":"policy","stream":true})"));
  EXPECT_TRUE(wire.ReadAll().ends_with("}}\n\n\r\n"));
  EXPECT_TRUE(BecomesQuiet());
  EXPECT_TRUE(IsNoted("ENGINE_BROKE_OFF"));
  EXPECT_EQ(engine_->requests().size(), 1u) << "nothing to abort";
}

TEST_F(DoorTest, RepliesCallTheModelWhatTheClientCalledIt) {
  StartBefore(
      [](const Message& request, Wire& wire) {
        if (request.body.find("stream") == std::string::npos) {
          return wire.Send(JsonReply(R"({"id":1,"model":")" + testing::NameOf("policy", 12).value +
                                     R"(","x":0.10})"));
        }
        return wire.Send(
            StreamHead() +
            Chunk("data: {\"model\":\"" + testing::NameOf("policy", 12).value.substr(0, 9)) +
            Chunk("-0123456789ab\",\"x\":1.0}\n\ndata: [DONE]\n\n") + Chunk(""));
      },
      fleet::EngineKind::kVllm);
  EXPECT_EQ(Ask(Post("/v1/completions", R"({"model":"policy"})")).body,
            R"({"id":1,"model":"policy","x":0.10})");
  EXPECT_EQ(Ask(Post("/v1/chat/completions", R"({"model":"policy@12","stream":true})")).body,
            "data: {\"model\":\"policy@12\",\"x\":1.0}\n\ndata: [DONE]\n\n");
}

}  // namespace
}  // namespace lorry::door
