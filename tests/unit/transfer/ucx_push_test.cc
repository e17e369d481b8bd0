// What a publisher does not believe of its store.
#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <future>

#include "lib/transfer/ucx/handshake.h"
#include "lib/transfer/ucx/host_proof.h"
#include "lib/transfer/ucx/loop.h"
#include "lib/transfer/ucx/wire.h"
#include "lorry/transfer/v1/ucx.grpc.pb.h"

namespace lorry::transfer::ucx {
namespace {

constexpr uint64_t kRange = uint64_t{1} << 20;

// Says of the second range, too, that it is in place as soon as the first one has come.
class HastyStore final : public v1::UcxService::Service {
 public:
  explicit HastyStore(uint64_t image_bytes) : image_bytes_(image_bytes) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~HastyStore() override { server_->Shutdown(); }
  std::string address() const { return "grpc://127.0.0.1:" + std::to_string(port_); }
  void AwaitBothSaid() { both_said_.wait(); }

  grpc::Status Attach(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override {
    v1::AttachRequest request;
    stream->Read(&request);
    const Handshake handshake{.secret = secret_->text(),
                              .client_nonce = request.open().nonce(),
                              .server_nonce = FreshNonce()};
    v1::AttachResponse response;
    response.mutable_challenge()->set_nonce(handshake.server_nonce);
    response.mutable_challenge()->set_pid(secret_->pid());
    response.mutable_challenge()->set_fd(secret_->fd());
    stream->Write(response);
    stream->Read(&request);
    loop_->PostAndWait([&] {
      endpoint_ = *loop_->Open(UcxLane::kSharedMemory,
                               {.on_message = [this](const Incoming& in) { return Take(in); },
                                .on_error = [](ucs_status_t) {}});
      ASSERT_TRUE(endpoint_->Connect(request.address().address()).ok());
      *response.mutable_attached()->mutable_address() =
          handshake.Signed(kServerSide, endpoint_->address());
    });
    response.mutable_attached()->set_image_bytes(image_bytes_);
    stream->Write(response);
    while (stream->Read(&request)) {
    }
    std::promise<void> closed;
    loop_->PostAndWait([&] { endpoint_->Close([&] { closed.set_value(); }); });
    closed.get_future().wait();
    return grpc::Status::OK;
  }

 private:
  bool Take(const Incoming& incoming) {
    endpoint_->Receive(incoming.announced, into_, [this](ucs_status_t) {
      for (const uint32_t request : {1, 2}) {
        endpoint_->Send(Encode({.kind = Kind::kDone, .request = request}), {},
                        [this](ucs_status_t) {
                          if (++said_count_ == 2) said_.set_value();
                        });
      }
    });
    return true;
  }

  const uint64_t image_bytes_;
  std::vector<std::byte> into_ = std::vector<std::byte>(kRange);
  const std::unique_ptr<HostSecret> secret_ = HostSecret::Create().value();
  const std::unique_ptr<Loop> loop_ =
      Loop::Start({UcxLane::kSharedMemory}, {},
                  {.busy = [] { return true; }, .on_tick = [](Tick) {}})
          .value();
  Endpoint* endpoint_ = nullptr;
  int said_count_ = 0;
  std::promise<void> said_;
  const std::shared_future<void> both_said_ = said_.get_future().share();
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// Its checksums are computed yet when the store says that it is in place.
TEST(UcxPush, ARangeThatWasNotOfferedCannotHaveArrived) {
  const std::vector<std::byte> image(3 * kRange);
  HastyStore store(image.size());
  const auto transport =
      CreateUcxTransport(UcxLane::kSharedMemory, std::make_shared<Channels>()).value();
  const Outcome outcome = PushAndWait(*transport,
                                      {.address = store.address(),
                                       .ticket = "any",
                                       .source = image,
                                       .options = {.range_bytes = kRange, .in_flight = 1}},
                                      [&](const Range&, auto) { store.AwaitBothSaid(); });
  EXPECT_THAT(std::string(outcome.status.message()), testing::HasSubstr("unexpected message"));
  EXPECT_EQ(outcome.bytes, kRange);
}

}  // namespace
}  // namespace lorry::transfer::ucx
