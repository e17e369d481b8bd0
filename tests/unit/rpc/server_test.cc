#include "lib/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <latch>
#include <thread>

#include "lib/base/error.h"
#include "tests/testing/temp_dir.h"
#include "tests/unit/rpc/echo_service.h"

namespace lorry::rpc {
namespace {

// For what ends long before.
constexpr int64_t kNoHurryMs = 60'000;

int64_t MsSince(Tick began) { return SteadyClock().Now() - began; }

TEST(Server, TakesAFreePortAndSaysWhich) {
  EchoServer first, second;
  EXPECT_GT(first.server->port(), 0);
  EXPECT_NE(first.server->port(), second.server->port());
  EXPECT_TRUE(Say(*first.Stub(), "hello").ok());
}

TEST(Server, APortThatIsTakenIsAnError) {
  EchoServer first;
  auto access = *Access::Open("", false);
  Gate gate(*access);
  ::testing::internal::CaptureStderr();
  const auto second = Server::Start({.address = first.server->address()}, gate, {});
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "the status says it";
  EXPECT_EQ(ReasonOf(second.status()), "LISTEN_FAILED");
}

TEST(Server, HandlersErrorsReachTheClientWithTheirReason) {
  EchoServer server;
  server.service.handler = [](const Call&) {
    return Error(absl::StatusCode::kAlreadyExists, "VERSION_CONFLICT", "policy r1.7 is stored");
  };
  const absl::Status status = Say(*server.Stub(), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReasonOf(status), "VERSION_CONFLICT");
}

TEST(Server, NobodyAsksTheGateOnceShutdownHasReturned) {
  const TempDir folder;
  std::ofstream(folder / "tokens") << "publisher 0123456789abcdef trainer\n";
  std::latch asked(1), go(1);
  std::atomic<bool> left = false;
  std::atomic<int> strangers = 0;
  const auto on_call = [&](const CallReport& report) {
    if (report.method != "any" || ++strangers > 1) return;
    asked.count_down();
    go.wait();
    left = true;
  };
  EchoServer server({.shutdown_max_ms = 500}, {.on_call = on_call}, folder / "tokens");
  std::thread stranger([&] { EXPECT_FALSE(Say(*server.Stub(), "hello").ok()); });
  asked.wait();
  std::promise<bool> returned;
  std::future<bool> left_by_then = returned.get_future();
  std::thread stops([&] {
    (void)server.server->Shutdown();
    returned.set_value(left);
  });
  left_by_then.wait_for(std::chrono::seconds(2));
  go.count_down();
  EXPECT_TRUE(left_by_then.get()) << "the gate may go now, and somebody is in it";
  stops.join();
  stranger.join();
}

TEST(Gate, GivesEveryCallADeadline) {
  EchoServer server({}, {.deadline_max_ms = 5'000, .deadline_default_ms = 1'000});
  int64_t left = 0;
  server.service.handler = [&](const Call& call) {
    left = call.deadline - SteadyClock().Now();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  EXPECT_TRUE(Say(*stub, "far").ok());  // 20 s
  EXPECT_LE(left, 5'000);
  EXPECT_GT(left, 1'000);
  grpc::ClientContext none;
  echo::EchoResponse response;
  EXPECT_TRUE(stub->Echo(&none, {}, &response).ok());
  EXPECT_LE(left, 1'000);
}

TEST(Gate, CallsBeyondItsLimitWaitForTheirTurn) {
  EchoServer server({}, {.calls_max = 2});
  std::latch both_in(2), leave(1);
  std::atomic<int> inside = 0, most = 0;
  server.service.handler = [&](const Call&) {
    most = std::max(most.load(), ++inside);
    if (!both_in.try_wait()) both_in.count_down();
    leave.wait();
    --inside;
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 10; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return Say(*stub, "x"); }));
  }
  both_in.wait();
  leave.count_down();
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
  EXPECT_EQ(most, 2);
}

TEST(Gate, RefusesCallsWhenTooManyWait) {
  EchoServer server({}, {.calls_max = 1, .waiting_max = 0});
  std::latch in(1), leave(1);
  server.service.handler = [&](const Call&) {
    in.count_down();
    leave.wait();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  auto one = std::async(std::launch::async, [&] { return Say(*stub, "1"); });
  in.wait();
  const absl::Status second = Say(*stub, "2");
  leave.count_down();
  EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(second), "SERVER_BUSY");
  EXPECT_TRUE(one.get().ok());
}

TEST(Gate, CallsThatOnlyWaitNeedNoTurn) {
  EchoServer server({}, {.calls_max = 1, .waiting_max = 20});
  std::latch all_in(20);
  server.service.effort = Effort::kWaits;
  server.service.handler = [&](const Call&) {
    all_in.arrive_and_wait();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return Say(*stub, "x"); }));
  }
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
}

TEST(Gate, CallsThatWaitForTheirTurnAreLetGoWhenItCloses) {
  EchoServer server({.shutdown_max_ms = kNoHurryMs}, {.calls_max = 1});
  std::latch in(1), leave(1);
  Collected<absl::Status> refused;
  server.service.handler = [&](const Call&) {
    in.count_down();
    leave.wait();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  auto one = std::async(std::launch::async, [&] { return Say(*stub, "1"); });
  in.wait();
  auto two = std::async(std::launch::async, [&] { return Say(*stub, "2"); });
  auto stopped = std::async(std::launch::async, [&] { return server.server->Shutdown(); });
  EXPECT_TRUE(absl::IsUnavailable(two.get())) << "while the first still works";
  leave.count_down();
  EXPECT_TRUE(stopped.get().ok());
  (void)one.get();
}

TEST(Server, RefusesHeadersBeyondItsLimit) {
  EchoServer server;
  std::atomic<int> served = 0;
  server.service.handler = [&](const Call&) {
    ++served;
    return absl::OkStatus();
  };
  grpc::ChannelArguments large;
  large.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 1 << 20);
  const auto stub = echo::EchoService::NewStub(grpc::CreateCustomChannel(
      server.server->address(), grpc::InsecureChannelCredentials(), large));
  const auto call = [&](size_t bytes) {
    grpc::ClientContext context;
    SetDeadlineIn(context, 20'000);
    context.AddMetadata("x-padding", std::string(bytes, 'x'));
    echo::EchoResponse response;
    return FromGrpc(stub->Echo(&context, {}, &response));
  };
  EXPECT_TRUE(call(8 << 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(call(32 << 10)));
  EXPECT_EQ(served, 1);
}

TEST(Gate, ReportsEachCall) {
  Collected<std::pair<std::string, absl::StatusCode>> reports;
  EchoServer server({}, {.on_call = [&](const CallReport& report) {
                      reports.Add({std::string(report.method), report.code});
                    }});
  EXPECT_TRUE(Say(*server.Stub(), "x").ok());
  EXPECT_EQ(reports.WaitForCount(1).at(0),
            std::make_pair(std::string("Echo"), absl::StatusCode::kOk));
}

TEST(Channel, RepeatsIdempotentCallsThatFoundNobody) {
  EchoServer server;
  std::atomic<int> calls = 0;
  server.service.handler = [&](const Call&) {
    return ++calls < 3 ? absl::UnavailableError("not yet") : absl::OkStatus();
  };
  EXPECT_TRUE(Say(*server.Stub({.idempotent = {"lorry.test.v1.EchoService/Echo"}}), "x").ok());
  EXPECT_EQ(calls, 3);
  calls = 0;
  EXPECT_FALSE(Say(*server.Stub(), "x").ok()) << "others are not repeated";
}

TEST(Shutdown, AnswersNewCallsWithUnavailable) {
  EchoServer server;
  const auto stub = server.Stub();
  EXPECT_TRUE(Say(*stub, "x").ok());
  EXPECT_TRUE(server.server->Shutdown().ok());
  EXPECT_EQ(Say(*stub, "x").code(), absl::StatusCode::kUnavailable);
}

TEST(Shutdown, LetsCallsFinish) {
  EchoServer server({.shutdown_max_ms = kNoHurryMs, .reply_grace_ms = kNoHurryMs});
  std::latch inside(1), leave(1);
  server.service.handler = [&](const Call&) {
    inside.count_down();
    leave.wait();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  auto call = std::async(std::launch::async, [&] { return Say(*stub, "x"); });
  inside.wait();
  auto stop = std::async(std::launch::async, [&] { return server.server->Shutdown(); });
  leave.count_down();
  EXPECT_TRUE(call.get().ok());
  EXPECT_TRUE(stop.get().ok());
}

TEST(Shutdown, ReturnsThoughAHandlerDoesNot) {
  EchoServer server({.shutdown_max_ms = 900});
  std::latch inside(1), leave(1);
  std::promise<void> left;
  server.service.handler = [&](const Call&) {
    inside.count_down();
    leave.wait();
    return absl::OkStatus();
  };
  const auto stub = server.Stub();
  auto call = std::async(std::launch::async, [&] { return Say(*stub, "x"); });
  inside.wait();
  const absl::Status stopped = server.server->Shutdown();
  EXPECT_EQ(stopped.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(stopped.message()), testing::HasSubstr("Echo x1"));
  leave.count_down();  // so that the left-behind thread ends before what it uses
  (void)call.get();
  EXPECT_TRUE(server.gate.WaitIdle(SteadyClock().Now() + 10'000).empty());
}

TEST(Shutdown, EndsOpenStreamsFirst) {
  EchoServer server({.shutdown_max_ms = kNoHurryMs});
  const auto stub = server.Stub();
  grpc::ClientContext attach, watch;
  auto attached = stub->Attach(&attach);
  attached->WaitForInitialMetadata();
  auto watching = stub->Watch(&watch, {});
  watching->WaitForInitialMetadata();
  server.service.watches.WaitForCount(1);

  const Tick began = SteadyClock().Now();
  EXPECT_TRUE(server.server->Shutdown().ok());
  EXPECT_LT(MsSince(began), kNoHurryMs);
  echo::EchoResponse response;
  EXPECT_FALSE(attached->Read(&response));
  EXPECT_EQ(ReasonOf(FromGrpc(attached->Finish())), "SHUTTING_DOWN");
  EXPECT_FALSE(watching->Read(&response));
  EXPECT_EQ(ReasonOf(FromGrpc(watching->Finish())), "SHUTTING_DOWN");
}

TEST(Shutdown, TwiceIsOnce) {
  EchoServer server;
  EXPECT_TRUE(server.server->Shutdown().ok());
  EXPECT_TRUE(server.server->Shutdown().ok());
}

}  // namespace
}  // namespace lorry::rpc
