#include "lib/transfer/ucx/attach_call.h"

#include <chrono>
#include <utility>

#include "lib/rpc/status.h"

namespace lorry::transfer::ucx {

std::shared_ptr<AttachCall> AttachCall::Start(const std::shared_ptr<grpc::Channel>& channel,
                                              Tick deadline_ms, Hooks hooks) {
  std::shared_ptr<AttachCall> call(
      new AttachCall(pb::UcxService::NewStub(channel), std::move(hooks)));
  call->self_ = call;
  call->context_.set_deadline(std::chrono::system_clock::now() +
                              std::chrono::milliseconds(deadline_ms));
  call->stub_->async()->Attach(&call->context_, call.get());
  // Writes come from our own thread, outside of gRPC's reactions: without a hold gRPC might be done
  // meanwhile.
  call->AddHold();
  call->StartRead(&call->response_);
  call->StartCall();
  return call;
}

void AttachCall::Send(pb::AttachRequest request) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(request));
  Pump();
}

void AttachCall::Finish() {
  MutexLock lock(mutex_);
  finishing_ = true;
  Pump();
}

void AttachCall::Cancel() {
  MutexLock lock(mutex_);
  context_.TryCancel();
  if (!held_) return;
  if (writing_) {
    finishing_ = true;  // the write ends badly, and Pump lets go
    return;
  }
  held_ = false;
  RemoveHold();
}

void AttachCall::Pump() {
  if (writing_ || !held_) return;
  if (!waiting_.empty()) {
    in_flight_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    StartWrite(&in_flight_);
  } else if (finishing_) {
    StartWritesDone();
    held_ = false;
    RemoveHold();
  }
}

void AttachCall::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok) waiting_.clear();
  Pump();
}

void AttachCall::OnReadDone(bool ok) {
  if (!ok) {
    // The stream is over; OnDone says how, once we let go.
    MutexLock lock(mutex_);
    if (!held_ || writing_) {
      finishing_ = true;
      return;
    }
    held_ = false;
    RemoveHold();
    return;
  }
  hooks_.on_response(std::exchange(response_, {}));
  StartRead(&response_);
}

void AttachCall::OnDone(const grpc::Status& status) {
  const std::shared_ptr<AttachCall> self = std::move(self_);
  hooks_.on_done(rpc::FromGrpc(status));
}

}  // namespace lorry::transfer::ucx
