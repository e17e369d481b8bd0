// The gRPC stream that sets a session up, from the dialling side. Internal to lib/transfer/ucx.
//
// Hooks run on gRPC's threads and must only post; each comes at most once, `on_done` exactly once
// and last. Everything else from any thread. Kept alive by itself until `on_done` has returned.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lorry/transfer/v1/ucx.grpc.pb.h"

namespace lorry::transfer::ucx {

namespace pb = ::lorry::transfer::v1;

class AttachCall final : public grpc::ClientBidiReactor<pb::AttachRequest, pb::AttachResponse> {
 public:
  struct Hooks {
    std::function<void(pb::AttachResponse)> on_response;
    std::function<void(absl::Status)> on_done;
  };
  static std::shared_ptr<AttachCall> Start(const std::shared_ptr<grpc::Channel>& channel,
                                           Tick deadline_ms, Hooks hooks);

  void Send(pb::AttachRequest request) LORRY_EXCLUDES(mutex_);
  void Finish() LORRY_EXCLUDES(mutex_);  // half-closes: nothing more is wanted
  void Cancel() LORRY_EXCLUDES(mutex_);

 private:
  AttachCall(std::unique_ptr<pb::UcxService::Stub> stub, Hooks hooks)
      : stub_(std::move(stub)), hooks_(std::move(hooks)) {}
  void Pump() LORRY_REQUIRES(mutex_);
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const std::unique_ptr<pb::UcxService::Stub> stub_;
  const Hooks hooks_;
  grpc::ClientContext context_;
  pb::AttachResponse response_;
  std::shared_ptr<AttachCall> self_;
  Mutex mutex_;
  std::deque<pb::AttachRequest> waiting_ LORRY_GUARDED_BY(mutex_);
  pb::AttachRequest in_flight_;  // gRPC reads it while `writing_`
  bool writing_ LORRY_GUARDED_BY(mutex_) = false;
  bool finishing_ LORRY_GUARDED_BY(mutex_) = false;
  bool held_ LORRY_GUARDED_BY(mutex_) = true;  // gRPC waits for us before it is done
};

}  // namespace lorry::transfer::ucx
