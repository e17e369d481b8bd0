// Channels to names whose addresses change, as those of pods do.
#include "lib/rpc/channel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

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

}  // namespace
}  // namespace lorry::rpc
