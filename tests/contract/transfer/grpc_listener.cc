#include "tests/contract/transfer/grpc_listener.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/rpc/callback_queue.h"

namespace lorry::transfer {
namespace {

// The same as lib/rpc's servers have.
constexpr int kKeepaliveMs = 5'000;

class GrpcServer final : public TransferServer {
 public:
  GrpcServer(std::vector<std::unique_ptr<GrpcTransferService>> services, std::string transport)
      : services_(std::move(services)), transport_(std::move(transport)) {
    rpc::HoldCallbackQueue();
    grpc::ServerBuilder builder;
    // Without this two servers may share a port, each getting some of the connections.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A write towards a stopped peer ends with its connection only, which is TCP_USER_TIMEOUT's
    // work; gRPC sets that from the keepalive timeout.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    for (const auto& service : services_) builder.RegisterService(service->service());
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("grpc://127.0.0.1:", port_);
  }
  ~GrpcServer() override {
    for (const auto& service : services_) service->Close();
    if (server_ == nullptr) return;
    server_->Shutdown();
    server_->Wait();
  }
  bool listening() const { return server_ != nullptr && port_ != 0; }
  std::string address() const override { return address_; }
  TransportStats stats() const override {
    for (const auto& service : services_) {
      const auto stats = service->stats();
      if (const auto found = stats.find(transport_); found != stats.end()) return found->second;
    }
    return {};
  }

 private:
  const std::vector<std::unique_ptr<GrpcTransferService>> services_;
  const std::string transport_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransferServer>> Listen(
    std::vector<std::unique_ptr<GrpcTransferService>> services, std::string transport) {
  auto server = std::make_unique<GrpcServer>(std::move(services), std::move(transport));
  if (!server->listening()) return absl::UnavailableError("cannot listen on loopback");
  return server;
}

}  // namespace lorry::transfer
