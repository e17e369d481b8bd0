#include "lib/rpc/callback_queue.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>

namespace lorry::rpc {
namespace {

// A channel takes the queue with its first callback call. This one never leaves the process: its
// deadline has passed before it begins.
bool Hold() {
  auto* channel = new std::shared_ptr<grpc::Channel>(  // never deleted: that is the point
      grpc::CreateChannel("unix:/dev/null", grpc::InsecureChannelCredentials()));
  struct Call {
    grpc::ClientContext context;
    grpc::Slice nothing;
    grpc::ByteBuffer request{&nothing, 1}, response;
  };
  auto* call = new Call;
  call->context.set_deadline(std::chrono::system_clock::now() - std::chrono::seconds(1));
  grpc::GenericStub(*channel).UnaryCall(&call->context, "/lorry/Hold", {}, &call->request,
                                        &call->response,
                                        [call](const grpc::Status&) { delete call; });
  return true;
}

}  // namespace

void HoldCallbackQueue() { [[maybe_unused]] static const bool held = Hold(); }

}  // namespace lorry::rpc
