// The door as an HTTP/1.1 server and client: framing, limits, backpressure, pooled connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/unit/engine_proxy/door/door_fixture.h"

namespace lorry::door {
namespace {

using testing::Chunk;
using testing::DoorTest;
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

class HttpTest : public DoorTest {
 protected:
  void StartEcho() {
    StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  }
  // The status of the first reply to raw bytes; the client has then said all it has to say.
  int Raw(std::string_view bytes) {
    Wire wire = Connect();
    wire.Send(bytes);
    return ReadMessage(wire).status();
  }
};

TEST_F(HttpTest, NothingSmuggledReachesTheEngine) {
  StartEcho();
  const std::string inner =
      "POST /unload_lora_adapter HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}";
  const auto with = [&](const std::string& fields, const std::string& body) {
    return "POST /generate HTTP/1.1\r\nHost: door\r\n" + fields + "\r\n" + body;
  };
  const std::string chunked = "Transfer-Encoding: chunked\r\n";
  const std::vector<std::string> corpus = {
      with("Content-Length: 4\r\n" + chunked, "0\r\n\r\n" + inner),
      with(chunked + "Content-Length: 4\r\n", "0\r\n\r\n" + inner),
      with("Content-Length: 0\r\nContent-Length: 80\r\n", inner),
      with("Content-Length: 0, 80\r\n", inner),
      with("Transfer-Encoding: gzip\r\nContent-Length: 4\r\n", inner),
      with("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n" + inner),
      with("Transfer-Encoding : chunked\r\n", "0\r\n\r\n" + inner),
      with("Transfer-Encoding:\x0b"
           "chunked\r\n",
           "0\r\n\r\n" + inner),
      with("X: y\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner),
      with("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner),
      with("Content-Length: -1\r\n", inner),
      with("Content-Length: +2\r\n", "{}" + inner),
      with(chunked, "0x2\r\n{}\r\n0\r\n\r\n" + inner),
      with(chunked, "-1\r\n{}\r\n0\r\n\r\n" + inner),
      with(chunked, "2\r\n{}XX0\r\n\r\n" + inner),
      with(chunked, "2\n{}\n0\n\n" + inner),
      with(chunked, "ffffffffffffffff1\r\n{}\r\n0\r\n\r\n" + inner),
      with(chunked, "2 ;\n\r\n{}\r\n0\r\n\r\n" + inner),
      "POST /generate HTTP/1.0\r\n" + chunked + "\r\n0\r\n\r\n" + inner,
      "POST /generate HTTP/1.1\nHost: door\nContent-Length: 2\n\n{}\r\n\r\n" + inner,
  };
  for (const std::string& bytes : corpus) {
    const int status = Raw(bytes);
    EXPECT_TRUE(status == 400 || status == 501) << status << "\n" << bytes;
  }
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(HttpTest, ChunkExtensionsAndTrailersEndHere) {
  StartEcho();
  EXPECT_EQ(Raw("POST /generate HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n"
                "16;x=\"y\"\r\n{\"lora_path\":\"policy\"}\r\n0\r\nX-Trailer: 1\r\n\r\n"),
            200);
  const Message seen = engine_->requests().at(0);
  EXPECT_EQ(seen.Get("Transfer-Encoding"), "");
  EXPECT_EQ(seen.Get("Content-Length"), std::to_string(seen.body.size()));
  EXPECT_EQ(seen.Get("X-Trailer"), "");
}

TEST_F(HttpTest, AnswersPipelinedRequestsInOrder) {
  StartEcho();
  Wire wire = Connect();
  const std::string text(700'000, 'a');  // more than the door makes room for at once
  const std::string asks = R"({"lora_path":"policy@11","text":")" + text + "\"}";
  wire.Send(Post("/generate", asks) + Get("/health") + Post("/generate", kAsk));
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Version"), "11");
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Version"), "");
  EXPECT_EQ(ReadMessage(wire).Get("X-Lorry-Version"), "12");
  EXPECT_NE(engine_->requests().at(0).body.find('"' + text + '"'), std::string::npos);
}

TEST_F(HttpTest, AsksForTheBodyOnlyWhenItWillReadIt) {
  StartEcho();
  Wire wire = Connect();
  wire.Send(
      "POST /generate HTTP/1.1\r\nHost: door\r\nExpect: 100-continue\r\nContent-Length: "
      "22\r\n\r\n");
  EXPECT_EQ(wire.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  wire.Send(kAsk);
  EXPECT_EQ(ReadMessage(wire).status(), 200);
  EXPECT_EQ(engine_->requests().at(0).Get("Expect"), "");
  EXPECT_EQ(Raw("POST /generate HTTP/1.1\r\nHost: door\r\nExpect: 100-continue\r\n"
                "Content-Length: 99999999\r\n\r\n"),
            413);
}

TEST_F(HttpTest, BoundsHeadsBodiesAndConnections) {
  options_.limits.body_bytes = 1000;
  options_.limits.connections = 3;
  StartEcho();
  EXPECT_EQ(Raw(Post("/generate", std::string(1001, ' '))), 413);
  EXPECT_EQ(Raw("POST /generate HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n" +
                Chunk(std::string(600, ' ')) + Chunk(std::string(600, ' '))),
            413);
  EXPECT_EQ(Raw("GET / HTTP/1.1\r\nX: " + std::string(100'000, 'a')), 431);
  // Those connections may still linger; once three are certainly open, a fourth is too many.
  EXPECT_TRUE(testing::Eventually([&] {
    std::vector<Wire> open;
    for (int i = 0; i < 3; ++i) {
      open.push_back(Connect());
      open.back().Send("GET /health HTTP/1.1\r\nHost: door\r\n\r\n");
      if (ReadMessage(open.back()).status() != 200) return false;
    }
    Wire fourth = Connect();
    return fourth.ReadUntil("\r\n\r\n").find("DOOR_FULL") != std::string::npos;
  }));
}

// As http.client of Python, and all that is made of it.
TEST_F(HttpTest, TellsClientsThatReadNothingBeforeTheyHaveSentAll) {
  StartEcho();
  Wire wire = Connect();
  EXPECT_TRUE(wire.Send(Post("/generate", std::string(options_.limits.body_bytes + 1, ' '))));
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.status(), 413);
  EXPECT_THAT(reply.body, HasSubstr("33554433 bytes, more than 33554432"));
}

TEST_F(HttpTest, ClosesClientsThatDawdle) {
  options_.limits.head_ms = 10;
  options_.limits.body_ms = 10;
  options_.limits.keep_alive_ms = 10;
  StartEcho();
  Wire silent = Connect();
  EXPECT_TRUE(silent.AtEnd());
  Wire slow_head = Connect();
  slow_head.Send("POST /generate HT");
  EXPECT_TRUE(slow_head.AtEnd());
  Wire slow_body = Connect();
  slow_body.Send("POST /generate HTTP/1.1\r\nHost: door\r\nContent-Length: 22\r\n\r\n{");
  EXPECT_TRUE(slow_body.AtEnd());
}

// One read takes these bytes, which the end came with: no event is left that would tell of it.
TEST_F(HttpTest, SeesAnEndThatCameTogetherWithTheLastBytes) {
  StartEcho();
  const std::string asks = Post("/generate", kAsk);
  for (const std::string& bytes :
       {Get("/health"), asks.substr(0, asks.size() - 1), asks.substr(0, 9)}) {
    Wire wire = Connect();
    wire.Send(Get("/health"));  // what a new connection has is told once more
    EXPECT_EQ(ReadMessage(wire).status(), 200);
    ASSERT_EQ(::send(wire.fd(), bytes.data(), bytes.size(), MSG_MORE),
              static_cast<ssize_t>(bytes.size()));
    wire.HalfClose();  // sends both, in one segment
    if (bytes.starts_with("GET")) {
      EXPECT_EQ(ReadMessage(wire).status(), 200);
    }
    EXPECT_TRUE(wire.AtEnd()) << bytes;
  }
}

TEST_F(HttpTest, ReadsARequestThatCameWhileTheLastOneWasServed) {
  Gate second_sent;
  StartBefore(
      [&](const Message&, Wire& wire) { return second_sent.Wait() && wire.Send(JsonReply("{}")); });
  Wire wire = Connect();
  wire.Send(Post("/generate", kAsk));
  EXPECT_TRUE(testing::Eventually([&] { return engine_->requests().size() == 1; }));
  wire.Send(Get("/health"));
  // What came later on either thread was served: the door has been told of those bytes.
  for (uint32_t i = 0; i < options_.threads; ++i) EXPECT_EQ(Ask(Get("/health")).status(), 200);
  second_sent.Open();
  EXPECT_EQ(ReadMessage(wire).body, "{}");
  EXPECT_EQ(ReadMessage(wire).status(), 200);
}

TEST_F(HttpTest, IgnoresEmptyLinesBeforeARequest) {
  StartEcho();
  EXPECT_EQ(Raw("\r\n\r\n" + Post("/generate", kAsk)), 200);
  EXPECT_EQ(Raw("\n" + Post("/generate", kAsk)), 400);
}

TEST_F(HttpTest, SeesACompressedBodyBehindAnEmptyField) {
  StartEcho();
  EXPECT_EQ(Raw(Post("/generate", "x", "Content-Encoding:\r\nContent-Encoding: gzip\r\n")), 415);
}

TEST_F(HttpTest, AddsItselfToTheProxiesOnTheWay) {
  StartEcho();
  EXPECT_EQ(Raw(Post("/generate", kAsk)), 200);
  EXPECT_EQ(engine_->requests().at(0).Get("X-Forwarded-For"), "127.0.0.1");
  EXPECT_EQ(engine_->requests().at(0).Get("Via"), "1.1 lorry");
  EXPECT_EQ(Raw(Post("/generate", kAsk,
                     "X-Forwarded-For: 10.0.0.7\r\nVia: 1.1 a\r\nX-Forwarded-For: 10.0.0.8\r\n")),
            200);
  EXPECT_EQ(engine_->requests().at(1).Get("X-Forwarded-For"), "10.0.0.7, 10.0.0.8, 127.0.0.1");
  EXPECT_EQ(engine_->requests().at(1).Get("Via"), "1.1 a, 1.1 lorry");
}

TEST_F(HttpTest, TellsWhoseEachReplyWas) {
  struct Served : DoorObserver {
    void OnServed(const std::string& adapter, uint64_t reply_bytes) override {
      const std::lock_guard lock(mutex);
      bytes[adapter].push_back(reply_bytes);
    }
    std::mutex mutex;
    std::map<std::string, std::vector<uint64_t>> bytes;
  } served;
  options_.observer = &served;
  StartBefore([](const Message&, Wire& wire) { return wire.Send(JsonReply("{}")); });
  std::vector<uint64_t> sizes;
  for (int i = 0; i < 2; ++i) {
    const Message reply = Ask(Post("/generate", kAsk));
    sizes.push_back(reply.head.size() + reply.body.size());
  }
  EXPECT_EQ(Ask(Post("/generate", R"({"lora_path":"unknown"})")).status(), 404);
  EXPECT_EQ(Ask(Get("/health")).status(), 200);
  door_.reset();
  ASSERT_EQ(served.bytes.size(), 1u) << "and nothing of what names no adapter";
  EXPECT_EQ(served.bytes["policy"], sizes);
}

// SGLang reads these instead of the body: ids would not be unique any more.
TEST_F(HttpTest, KeepsOverridingFieldsToItself) {
  StartEcho();
  EXPECT_EQ(Raw(Post("/generate", kAsk, "X-Override-Rid: r\r\nx-override-bootstrap-host: h\r\n")),
            200);
  EXPECT_EQ(engine_->requests().at(0).Get("X-Override-Rid"), "");
  EXPECT_EQ(engine_->requests().at(0).Get("X-Override-Bootstrap-Host"), "");
}

TEST_F(HttpTest, NoticesThatAClientLeavesBehindAPipelinedRequest) {
  Gate closed;
  StartBefore(
      [&](const Message&, Wire& wire) {
        if (wire.AtEnd()) closed.Open();
        return false;
      },
      fleet::EngineKind::kVllm);
  {
    Wire wire = Connect();
    wire.Send(Post("/v1/completions", R"({"model":"policy"})"));
    EXPECT_TRUE(testing::Eventually([&] { return engine_->requests().size() == 1; }));
    wire.Send(Get("/health"));
    // What came later on either thread was served: the door has seen those bytes, and no end yet.
    for (uint32_t i = 0; i < options_.threads; ++i) EXPECT_EQ(Ask(Get("/health")).status(), 200);
  }
  EXPECT_TRUE(closed.Wait());
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(HttpTest, SpeaksHttp10AndHead) {
  StartBefore([](const Message& request, Wire& wire) {
    if (request.head.compare(0, 4, "HEAD") == 0)
      return wire.Send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n");
    return wire.Send(StreamHead() + Chunk("data: 1\n\n") + Chunk(""));
  });
  Wire old = Connect();
  old.Send("POST /generate HTTP/1.0\r\nContent-Length: 22\r\n\r\n" + std::string(kAsk));
  const std::string reply = old.ReadAll();
  EXPECT_EQ(reply.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(reply.find("\r\n\r\ndata: 1\n\n"), std::string::npos);
  Wire head = Connect();
  head.Send("HEAD /health HTTP/1.1\r\nHost: door\r\n\r\n" + Get("/health"));
  EXPECT_EQ(ReadMessage(head, true).status(), 200);
  EXPECT_EQ(ReadMessage(head).status(), 200);
}

// A client that does not read stops the engine's stream: what the door and the kernel hold of it is
// bounded.
TEST_F(HttpTest, ASlowReaderSlowsTheEngineAndNothingPilesUp) {
  constexpr size_t kStream = 64u << 20;
  std::atomic<size_t> stalled_at{0};
  Gate stalled;
  StartBefore([&](const Message&, Wire& wire) {
    wire.Send(StreamHead());
    const std::string chunk = Chunk(std::string(64 * 1024, 'x'));
    std::string pending;
    size_t sent = 0;
    for (size_t made = 0; made < kStream || !pending.empty();) {
      if (pending.empty()) {
        pending = chunk;
        made += 64 * 1024;
      }
      pollfd writable{wire.fd(), POLLOUT, 0};
      if (::poll(&writable, 1, stalled_at == 0 ? 200 : 10'000) == 0) {
        if (stalled_at != 0) return false;
        stalled_at = sent;
        stalled.Open();
        continue;
      }
      const ssize_t n =
          ::send(wire.fd(), pending.data(), pending.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) continue;
      pending.erase(0, static_cast<size_t>(n));
      sent += static_cast<size_t>(n);
    }
    return wire.Send(Chunk(""));
  });
  Wire wire = Wire::Connect(door_->port(), 64 * 1024);
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true})"));
  ASSERT_TRUE(stalled.Wait());
  EXPECT_LT(stalled_at.load(), 20u << 20) << "kernel buffers of two sockets, and 150 KiB of ours";
  const Message reply = ReadMessage(wire);
  EXPECT_EQ(reply.body.size(), kStream);
  EXPECT_EQ(std::count(reply.body.begin(), reply.body.end(), 'x'), static_cast<long>(kStream));
}

TEST_F(HttpTest, ASlowReaderThatNeverReadsHasLeft) {
  options_.limits.client_write_ms = 50;
  Gate aborted;
  StartBefore([&](const Message& request, Wire& wire) {
    if (request.path() == "/abort_request") {
      aborted.Open();
      return wire.Send(JsonReply(""));
    }
    wire.Send(StreamHead());
    const std::string chunk = Chunk(std::string(64 * 1024, 'x'));
    for (int i = 0; i < 512; ++i) {
      if (!wire.Send(chunk)) return false;
    }
    EXPECT_TRUE(aborted.Wait());
    return wire.Send(Chunk(""));
  });
  Wire wire = Wire::Connect(door_->port(), 16 * 1024);
  wire.Send(Post("/generate", R"({"lora_path":"policy","stream":true})"));
  EXPECT_TRUE(aborted.Wait());
  EXPECT_TRUE(BecomesQuiet());
}

TEST_F(HttpTest, AShortReplyKeepsItsLengthThoughANameInItChanges) {
  const std::string said = R"({"model":"base","choices":[]})";
  StartBefore([&](const Message&, Wire& wire) {
    const std::string reply = JsonReply(said);
    return wire.Send(reply.substr(0, reply.size() - 9)) &&
           wire.Send(reply.substr(reply.size() - 9));
  });
  const Message reply = Ask(Post("/v1/chat/completions", R"({"model":"policy"})"));
  EXPECT_EQ(reply.body, R"({"model":"policy","choices":[]})");
  EXPECT_EQ(reply.Get("Content-Length"), std::to_string(reply.body.size()));
  EXPECT_EQ(reply.Get("Transfer-Encoding"), "");
}

TEST_F(HttpTest, ALongReplyIsNotHeldBackForANameInIt) {
  const std::string said = R"({"model":"base","text":")" + std::string(100'000, 'x') + "\"}";
  StartBefore([&](const Message&, Wire& wire) { return wire.Send(JsonReply(said)); });
  const Message reply = Ask(Post("/v1/chat/completions", R"({"model":"policy"})"));
  EXPECT_EQ(reply.body.size(), said.size() + 2);
  EXPECT_EQ(reply.Get("Transfer-Encoding"), "chunked");
}

}  // namespace
}  // namespace lorry::door
