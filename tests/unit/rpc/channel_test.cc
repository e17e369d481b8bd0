// Channels to names whose addresses change, as those of pods do.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lib/rpc/fresh_channel.h"
#include "tests/testing/names.h"
#include "tests/unit/rpc/echo_service.h"

namespace lorry::rpc {
namespace {

TEST(Channel, AServiceThatHasMovedIsFoundAtItsNewAddress) {
  // gRPC's own resolver asks name servers; libc's is this test's.
  ASSERT_EQ(::setenv("GRPC_DNS_RESOLVER", "native", 1), 0);
  EchoServer server;
  SetName("store.test", {"127.0.0.2"});
  const auto stub = server.Stub({.target = "store.test:" + std::to_string(server.server->port())});
  ASSERT_TRUE(absl::IsUnavailable(Say(*stub, "nobody listens here")));
  SetName("store.test", {"127.0.0.1"});
  // Ends before gRPC's own 30 s.
  grpc::ClientContext context;
  SetDeadlineIn(context, 20'000);
  context.set_wait_for_ready(true);
  echo::EchoResponse response;
  EXPECT_EQ(FromGrpc(stub->Echo(&context, {}, &response)), absl::OkStatus());
}

TEST(Channel, ANameThatIsUnknownForLongIsAskedForAgainAsOftenAsTheServiceIsCalled) {
  ASSERT_EQ(::setenv("GRPC_DNS_RESOLVER", "native", 1), 0);
  const EchoServer server;
  const ChannelOptions options{.target = "moves.test:" + std::to_string(server.server->port())};
  ManualClock clock;
  FreshChannel channel(
      *MakeChannel(options), [&] { return *MakeChannel(options); }, clock);
  const auto say = [&] { return Say(*echo::EchoService::NewStub(channel.Get()), "hello"); };

  LoseName("moves.test");
  EXPECT_NE(channel.Await(std::chrono::milliseconds(1)), nullptr) << "nobody waits for longer";
  constexpr int kCalls = 20;  // by itself gRPC would ask for the last of them after two minutes
  for (int calls = 1; calls <= kCalls; ++calls) {
    ASSERT_TRUE(absl::IsUnavailable(say()));
    EXPECT_GE(LookupsOf("moves.test"), calls);
    clock.Advance(FreshChannel::kLifeMs);
  }
  SetName("moves.test", {"127.0.0.1"});
  EXPECT_EQ(say(), absl::OkStatus()) << "the first call after it is known";
  const auto connected = channel.Await(std::chrono::seconds(20));
  clock.Advance(FreshChannel::kLifeMs);
  EXPECT_EQ(channel.Get(), connected) << "one that works stays";
}

}  // namespace
}  // namespace lorry::rpc
