#include "lib/rpc/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "lib/base/error.h"
#include "lib/rpc/reconnecting_stream.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/rpc/echo_service.h"

namespace lorry::rpc {
namespace {

using ::testing::ElementsAre;

echo::EchoRequest Request(std::string text) {
  echo::EchoRequest request;
  request.set_text(std::move(text));
  return request;
}
echo::EchoResponse Response(std::string text) {
  echo::EchoResponse response;
  response.set_text(std::move(text));
  return response;
}

TEST(Outbox, LatestWinsHoldsOne) {
  Outbox<int> outbox;
  EXPECT_TRUE(outbox.Put(1));
  EXPECT_TRUE(outbox.Put(2));
  EXPECT_EQ(outbox.Take(), 2);
  EXPECT_EQ(outbox.Take(), std::nullopt);
}

TEST(Outbox, FifoKeepsOrderAndRefusesBeyondItsLimit) {
  Outbox<int> outbox(2);
  EXPECT_TRUE(outbox.Put(1));
  EXPECT_TRUE(outbox.Put(2));
  EXPECT_FALSE(outbox.Put(3));
  EXPECT_EQ(outbox.Take(), 1);
  EXPECT_EQ(outbox.Take(), 2);
}

TEST(Backoff, DoublesWithJitterUpToItsLimit) {
  Prng prng(1);
  const Backoff backoff{.min_ms = 100, .max_ms = 1'000};
  for (const auto& [failures, longest] :
       {std::pair(0, 100), {1, 200}, {3, 800}, {4, 1'000}, {1'000, 1'000}}) {
    for (int i = 0; i < 50; ++i) {
      const int64_t wait = BackoffMs(backoff, failures, prng);
      EXPECT_GE(wait, longest / 2);
      EXPECT_LE(wait, longest);
    }
  }
}

// A client of Attach whose events are collected.
struct AttachClient {
  explicit AttachClient(std::unique_ptr<echo::EchoService::Stub> with, std::string hello = "hello",
                        Backoff backoff = {.min_ms = 10, .max_ms = 100, .jitter_seed = 7})
      : stub(std::move(with)),
        stream({.start = [this](auto* context,
                                auto* reactor) { stub->async()->Attach(context, reactor); },
                .hello = [hello] { return Request(hello); },
                .on_open = [this] { opened.Add(true); },
                .on_message = [this](echo::EchoResponse message) { heard.Add(message.text()); },
                .on_closed = [this](absl::Status why) { closed.Add(std::move(why)); }},
               backoff) {
    stream.Start();
  }
  std::unique_ptr<echo::EchoService::Stub> stub;
  Collected<bool> opened;
  Collected<std::string> heard;
  Collected<absl::Status> closed;
  ReconnectingStream<echo::EchoRequest, echo::EchoResponse> stream;
};

TEST(Attach, BeginsWithHelloAndCarriesBothWays) {
  EchoServer server;
  AttachClient client(server.Stub());
  EXPECT_THAT(client.heard.WaitForCount(1), ElementsAre("hello"));
  EXPECT_TRUE(client.stream.Send(Request("one")));
  EXPECT_THAT(client.heard.WaitForCount(2), ElementsAre("hello", "one"));
  client.stream.Stop();
  EXPECT_EQ(server.service.closed.WaitForCount(1).size(), 1u);
  EXPECT_FALSE(client.stream.Send(Request("late")));
}

TEST(Attach, TheServersReasonReachesTheClientWhichDialsAgain) {
  EchoServer server;
  AttachClient client(server.Stub());
  client.heard.WaitForCount(1);
  client.stream.Send(Request("close"));
  EXPECT_EQ(ReasonOf(client.closed.WaitForCount(1).at(0)), "TERM_FENCED");
  EXPECT_THAT(client.heard.WaitForCount(2), ElementsAre("hello", "hello"));
  EXPECT_EQ(server.service.sessions.WaitForCount(2).size(), 2u);
}

TEST(Attach, AStreamThatIsFinishedGoesOnAndDialsNobodyOnceItHasEnded) {
  EchoServer server;
  AttachClient finished(server.Stub());
  AttachClient other(server.Stub());
  finished.heard.WaitForCount(1);
  finished.stream.Finish();
  EXPECT_TRUE(finished.stream.Send(Request("one")));
  EXPECT_THAT(finished.heard.WaitForCount(2), ElementsAre("hello", "one"));
  finished.stream.Send(Request("close"));
  EXPECT_EQ(finished.closed.WaitForCount(1).size(), 1u);
  // The other one is thrown out as often as it takes: it has been back many times when this ends.
  constexpr size_t kTimes = 5;
  for (size_t times = 1; times <= kTimes; ++times) {
    EXPECT_EQ(other.heard.WaitForCount(times).size(), times);
    other.stream.Send(Request("close"));
    other.closed.WaitForCount(times);
  }
  EXPECT_EQ(finished.opened.WaitForCount(1).size(), 1u);
}

// Waits that never end, unless they begin anew.
constexpr Backoff kPatient{.min_ms = 1, .max_ms = 3'600'000};

TEST(Attach, WhoeverIsRefusedAfterItsHelloDialsLessAndLess) {
  EchoServer server;
  AttachClient refused(server.Stub(), "close", kPatient);
  AttachClient heard(server.Stub(), "hello", kPatient);
  // Each of these is a use of the stream, after which the next try is made at once.
  constexpr size_t kTimes = 100;
  for (size_t times = 1; times <= kTimes; ++times) {
    ASSERT_EQ(heard.heard.WaitForCount(times).size(), times);
    heard.stream.Send(Request("close"));
    heard.closed.WaitForCount(times);
  }
  EXPECT_LT(refused.closed.WaitForCount(1).size(), kTimes / 5);
  EXPECT_FALSE(refused.opened.WaitForCount(1).empty()) << "it was admitted each time";
}

TEST(Attach, ARefusedStreamIsNeverOpen) {
  const TempDir directory;
  std::ofstream(directory / "tokens") << "engine engine-token-00000001\n";
  EchoServer server({}, {}, directory / "tokens");
  AttachClient client(server.Stub());
  const auto closed = client.closed.WaitForCount(2);
  EXPECT_EQ(ReasonOf(closed.at(0)), "UNAUTHENTICATED");
  client.stream.Stop();
  EXPECT_TRUE(client.opened.WaitForCount(0).empty());
}

TEST(Attach, AMessageThatCannotBeParsedIsNoGoodbye) {
  EchoServer server;
  const auto stub = server.Stub();
  const auto end =
      [&](const std::function<void(
              grpc::ClientReaderWriter<echo::EchoRequest, echo::EchoResponse>&)>& say) {
        grpc::ClientContext context;
        SetDeadlineIn(context, 20'000);
        const auto stream = stub->Attach(&context);
        say(*stream);
        return FromGrpc(stream->Finish());
      };
  EXPECT_EQ(ReasonOf(end([](auto& stream) { stream.Write(Request("caf\xe9")); })),
            "MESSAGE_INVALID");
  EXPECT_EQ(end([](auto& stream) { stream.WritesDone(); }), absl::OkStatus()) << "half-closed";
}

TEST(Attach, DialsUntilSomebodyAnswers) {
  auto first = std::make_unique<EchoServer>();
  const std::string address = first->server->address();
  AttachClient client(first->Stub());
  client.heard.WaitForCount(1);
  first.reset();
  EXPECT_FALSE(client.closed.WaitForCount(2).at(1).ok());
  EchoServer second({.address = address});
  ASSERT_NE(second.server, nullptr);
  EXPECT_THAT(client.heard.WaitForCount(2), ElementsAre("hello", "hello"));
}

TEST(Attach, StopReturnsWhileNobodyAnswers) {
  std::string nowhere;
  { nowhere = EchoServer().server->address(); }
  AttachClient client(echo::EchoService::NewStub(*MakeChannel({.target = nowhere})));
  client.closed.WaitForCount(1);
  client.stream.Stop();
}

TEST(Attach, AHeldSessionOutlivesItsStreamHarmlessly) {
  EchoServer server;
  std::shared_ptr<EchoSession> session;
  {
    AttachClient client(server.Stub());
    session = server.service.sessions.WaitForCount(1).at(0);
  }
  server.service.closed.WaitForCount(1);
  EXPECT_FALSE(session->Send(Response("too late")));
  session->Close(absl::OkStatus());
  session->Cancel(absl::OkStatus());
  EXPECT_EQ(server.service.closed.WaitForCount(1).size(), 1u) << "closed once";
}

TEST(Watch, DeliversInOrder) {
  EchoServer server;
  const auto stub = server.Stub();
  Collected<std::string> heard;
  const echo::EchoRequest request;
  ReconnectingReader<echo::EchoResponse> reader(
      {.start = [&](auto* context,
                    auto* reactor) { stub->async()->Watch(context, &request, reactor); },
       .on_message = [&](echo::EchoResponse message) { heard.Add(message.text()); }});
  reader.Start();
  const auto session = server.service.watches.WaitForCount(1).at(0);
  for (const char* text : {"1", "2", "3"}) EXPECT_TRUE(session->Send(Response(text)));
  EXPECT_THAT(heard.WaitForCount(3), ElementsAre("1", "2", "3"));
  reader.Stop();
}

TEST(Watch, OneThatIsRedialledIsNotPunished) {
  EchoServer server;
  const auto stub = server.Stub();
  const echo::EchoRequest request;
  ReconnectingReader<echo::EchoResponse> reader(
      {.start = [&](auto* context,
                    auto* reactor) { stub->async()->Watch(context, &request, reactor); },
       .on_message = [](const echo::EchoResponse&) {}},
      kPatient);
  reader.Start();
  for (size_t times = 1; times <= 30; ++times) {
    ASSERT_EQ(server.service.watches.WaitForCount(times).size(), times);
    reader.Redial();
  }
}

TEST(Watch, WhoeverHearsInVainDialsLessAndLess) {
  using Reader = ReconnectingReader<echo::EchoResponse>;
  struct Client {
    explicit Client(void (Reader::*redial)())
        : reader(
              {.start = [this](auto* context,
                               auto* reactor) { stub->async()->Watch(context, &request, reactor); },
               .on_message = [this, redial](const echo::EchoResponse&) { (reader.*redial)(); }},
              kPatient) {
      reader.Start();
    }
    // How often it has dialled, which is that often at least; hears a word each time.
    size_t Hear(size_t at_least) {
      const auto watches = server.service.watches.WaitForCount(at_least);
      watches.back()->Send(Response("word"));
      return watches.size();
    }
    EchoServer server;
    const std::unique_ptr<echo::EchoService::Stub> stub = server.Stub();
    const echo::EchoRequest request;
    Reader reader;
  };
  Client in_vain(&Reader::RedialInVain), other(&Reader::Redial);
  constexpr size_t kTimes = 100;
  size_t dialled = 0;
  for (size_t times = 1; times <= kTimes; ++times) {
    ASSERT_GE(other.Hear(times), times);
    dialled = in_vain.Hear(1);
  }
  EXPECT_LT(dialled, kTimes / 5);
}

// A reader that takes nothing: the window fills, then the FIFO.
TEST(Watch, AReaderThatFallsBehindIsToldSo) {
  EchoServer server({.stream_stall_max_ms = 60'000});
  server.service.watch_fifo_max = 4;
  const auto stub = server.Stub();
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, {});
  reader->WaitForInitialMetadata();
  const auto session = server.service.watches.WaitForCount(1).at(0);
  int sent = 0;
  while (session->Send(Response(std::string(1 << 20, 'x')))) ASSERT_LT(++sent, 100);
  echo::EchoResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(ReasonOf(FromGrpc(reader->Finish())), "STREAM_TOO_SLOW");
}

TEST(Stream, APeerThatDoesNotReadIsCancelled) {
  EchoServer server({.stream_stall_max_ms = 300});
  const auto stub = server.Stub();
  grpc::ClientContext context;
  const auto reader = stub->Attach(&context);
  reader->WaitForInitialMetadata();
  const auto session = server.service.sessions.WaitForCount(1).at(0);
  // On a quick machine gRPC widens the window far beyond a message: send until it is full, and on.
  for (int i = 0; i < 100'000 && session->Send(Response(std::string(1 << 20, 'x'))); ++i) {
  }
  EXPECT_EQ(server.service.closed.WaitForCount(1).at(0).code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace lorry::rpc
