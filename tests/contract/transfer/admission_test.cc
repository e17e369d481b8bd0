// Who gets as far as a ticket, and whose ticket it is.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lib/rpc/channel.h"
#include "lib/transfer/ucx/transports.h"
#include "lorry/transfer/v1/transfer.grpc.pb.h"
#include "lorry/transfer/v1/ucx.grpc.pb.h"
#include "tests/contract/transfer/child.h"
#include "tests/contract/transfer/kinds.h"
#include "tests/testing/temp_dir.h"

namespace lorry::transfer {
namespace {

using absl::StatusCode;
namespace pb = ::lorry::transfer::v1;

constexpr uint64_t kSize = 3 * kMiB;

// Streams that say nothing, as somebody without a ticket opens them.
class Silent {
 public:
  Silent(TransferServer& server, std::string_view kind, int count) {
    const std::string address = server.address();
    const uint64_t before = server.stats().sessions_opened;
    for (int i = 0; i < count; ++i) {
      auto& context = contexts_.emplace_back(std::make_unique<grpc::ClientContext>());
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      const auto channel =
          grpc::CreateChannel(std::string(HostPortOf(address)), grpc::InsecureChannelCredentials());
      if (kind == "grpc") {
        puts_.push_back(pb::TransferService::NewStub(channel)->Put(context.get()));
      } else {
        attaches_.push_back(pb::UcxService::NewStub(channel)->Attach(context.get()));
        attaches_.back()->WaitForInitialMetadata();
      }
    }
    // An Attach stream tells when it is there, a Put stream only its server does.
    EXPECT_TRUE(kind != "grpc" || Eventually([&] {
                  return server.stats().sessions_opened >= before + static_cast<uint64_t>(count);
                }));
  }
  ~Silent() {
    for (const auto& context : contexts_) context->TryCancel();
  }
  // How many ended with `code`; waits for all.
  int Ended(grpc::StatusCode code) {
    int ended = 0;
    pb::PutResponse put;
    for (const auto& stream : puts_)
      ended += !stream->Read(&put) && stream->Finish().error_code() == code;
    pb::AttachResponse attach;
    for (const auto& stream : attaches_) {
      ended += !stream->Read(&attach) && stream->Finish().error_code() == code;
    }
    return ended;
  }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<pb::PutRequest, pb::PutResponse>>> puts_;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<pb::AttachRequest, pb::AttachResponse>>>
      attaches_;
};

class Admission : public TransportSuite {};
INSTANTIATE_TEST_SUITE_P(Every, Admission, testing::Values("grpc", "ucx-shm"),
                         [](const auto& info) { return TestName(info.param); });

TEST_P(Admission, WhoShowsNoTicketSoonHasToGo) {
  World world(GetParam(), {.ticketless_max = 4, .ticket_deadline_ms = 100});
  Silent silent(*world.server, GetParam(), 4);
  // gRPC cancels a stream that it ends in the middle of a read.
  const auto code = GetParam() == std::string("grpc") ? grpc::StatusCode::CANCELLED
                                                      : grpc::StatusCode::DEADLINE_EXCEEDED;
  EXPECT_EQ(silent.Ended(code), 4);
  world.handler.Serve("image", MakeImage(kSize));
  Bytes into(kSize);
  // A client hears that its stream ended before the server is done with it.
  EXPECT_TRUE(Eventually(
      [&] { return FetchAndWait(*world.transport, world.FetchOf("image", into)).status.ok(); }));
}

TEST_P(Admission, WhoShowsNoTicketTakesNoPlaceOfThoseWhoDo) {
  World world(GetParam(), {.sessions_max = 1, .ticketless_max = 8, .ticketless_per_host_max = 8});
  world.handler.Serve("image", MakeImage(kSize));
  Silent silent(*world.server, GetParam(), 7);
  Bytes into(kSize);
  EXPECT_THAT(FetchAndWait(*world.transport, world.FetchOf("image", into)), EndsWell());
}

TEST_P(Admission, AnAddressHasItsShareOfThePlacesBeforeTheTicket) {
  World world(GetParam(), {.ticketless_max = 8, .ticketless_per_host_max = 2});
  Silent first(*world.server, GetParam(), 2);
  Silent third(*world.server, GetParam(), 1);
  EXPECT_EQ(third.Ended(grpc::StatusCode::RESOURCE_EXHAUSTED), 1);
}

// A server that knows alice and bob, and what each of them dials with.
class Known : public TransportSuite {
 public:
  Known() {
    std::ofstream(dir_ / "tokens")
        << "engine alices-token-00001 alice\nengine bobs-token-0000001 bob\n";
    std::ofstream(dir_ / "alice") << "alices-token-00001";
    std::ofstream(dir_ / "bob") << "bobs-token-0000001";
    access_ = *rpc::Access::Open(dir_ / "tokens", false);
    gate_.emplace(*access_);
    handler_.Serve("image", MakeImage(kSize));
    server_ = StartServer(GetParam(), {}, *keys_, handler_, &*gate_);
  }
  // A fetch by `caller` with a ticket that `holder` was given.
  Outcome Fetch(const std::string& caller, const std::string& holder) {
    const auto dial = [&](const std::string& target) {
      return *rpc::MakeChannel(
          {.target = target, .token_file = caller.empty() ? "" : dir_ / caller});
    };
    const auto channels = std::make_shared<Channels>(dial);
    const auto transport = GetParam() == std::string("grpc")
                               ? CreateGrpcTransport(channels)
                               : *CreateUcxTransport(UcxLane::kSharedMemory, channels);
    TicketClaims claims = ClaimsFor(Direction::kGet, "image", kSize);
    claims.peer = holder;
    Bytes into(kSize);
    return FetchAndWait(
        *transport,
        {.address = server_->address(), .ticket = *keys_->Mint(claims), .destination = into});
  }

 private:
  TempDir dir_;
  const std::unique_ptr<TicketKeys> keys_ = TestKeys();
  TestHandler handler_;
  std::unique_ptr<rpc::Access> access_;
  std::optional<rpc::Gate> gate_;
  std::unique_ptr<TransferServer> server_;
};
INSTANTIATE_TEST_SUITE_P(Every, Known, testing::Values("grpc", "ucx-shm"),
                         [](const auto& info) { return TestName(info.param); });

TEST_P(Known, ATicketIsOfUseToItsHolderOnly) {
  EXPECT_THAT(Fetch("alice", "alice"), EndsWell());
  EXPECT_THAT(Fetch("bob", "alice"), EndsWithCode(StatusCode::kPermissionDenied, "BAD_TICKET"));
  EXPECT_THAT(Fetch("", "alice"), EndsWithCode(StatusCode::kUnauthenticated, "UNAUTHENTICATED"));
}

// Ranges wait at their sender until there is room for them, unless UCX there is told to send them
// at once. Here nothing is received, so that all that comes is kept.
TEST(Sending, WhatDoesNotWaitToBeReceivedIsBounded) {
  World world("ucx-shm", {.receiving_max = 0});
  world.handler.Expect("image", 8 * kMiB);
  setenv("UCX_RNDV_THRESH", "inf", 1);
  Child hasty({LORRY_TRANSFER_PEER, "push", "ucx-shm", std::to_string(8 * kMiB), "1",
               world.server->address()});
  unsetenv("UCX_RNDV_THRESH");
  EXPECT_EQ(
      hasty.ReadLine(),
      "INVALID_ARGUMENT: the peer broke the protocol: ranges that did not wait to be received");
}

TEST(Asking, ForTheSameBytesManyTimesSendsThemOnce) {
  World world("grpc");
  world.handler.Serve("image", MakeImage(kSize));
  const auto stub = pb::TransferService::NewStub(grpc::CreateChannel(
      std::string(HostPortOf(world.server->address())), grpc::InsecureChannelCredentials()));
  pb::GetRequest request;
  request.set_ticket(TicketFor(*world.keys, Direction::kGet, "image", kSize));
  for (int i = 0; i < 20'000; ++i) {
    pb::ByteRange* range = request.add_ranges();
    range->set_offset(0);
    range->set_length(kSize);
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto stream = stub->Get(&context, request);
  pb::GetResponse response;
  uint64_t bytes = 0;
  for (int read = 0; read < 10 && stream->Read(&response); ++read) {
    bytes += response.chunk().data().size();
  }
  EXPECT_EQ(bytes, kSize);
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace lorry::transfer
