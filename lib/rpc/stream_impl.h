// The templates of lib/rpc/stream.h. gRPC's rules kept here: one read and one write in flight,
// Finish exactly once and after the write in flight, no read begun after Finish, the reactor lives
// until OnDone.
#pragma once

#include <utility>

namespace lorry::rpc {

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::Begin(Gate& gate, grpc::CallbackServerContext& context,
                                       Roles wanted, std::shared_ptr<StreamWriter> self,
                                       std::string_view adapter) {
  self_ = std::move(self);
  context_ = &context;
  absl::StatusOr<Caller> caller = gate.AdmitStream(context, wanted, adapter);
  if (caller.ok()) {
    caller_ = *std::move(caller);
    if (gate.streams().Add(self_)) registry_ = &gate.streams();
  }
  if (registry_ == nullptr) {
    MutexLock lock(mutex_);
    closing_ = finished_ = true;
    this->Finish(ToGrpc(caller.ok() ? ShuttingDown() : caller.status()));
    return;
  }
  {
    // Tells the client that it is admitted. The registry has the stream, so another thread may have
    // closed it already or be about to: nothing may be started after Finish, hence the lock.
    MutexLock lock(mutex_);
    if (!finished_) this->StartSendInitialMetadata();
  }
  OnOpen();
  BeginReading();
}

template <typename Reactor, typename Out>
bool StreamWriter<Reactor, Out>::Send(Out message) {
  MutexLock lock(mutex_);
  if (closing_) return false;
  if (!outbox_.Put(std::move(message))) {
    closing_ = true;
    why_ = Error(absl::StatusCode::kResourceExhausted, "STREAM_TOO_SLOW",
                 "the reader fell too far behind; list and watch again");
    FinishIfIdle();
    return false;
  }
  if (!writing_) StartNextWrite();
  return true;
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::Close(absl::Status status) {
  MutexLock lock(mutex_);
  if (closing_) return;
  closing_ = true;
  why_ = std::move(status);
  FinishIfIdle();
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::Cancel(absl::Status status) {
  Close(std::move(status));
  // The registry, which calls this, keeps the stream alive, but context_ is gRPC's and is gone once
  // OnDone has returned. OnDone takes this lock to set done_, so context_ is valid here until then.
  MutexLock lock(mutex_);
  if (!done_) context_->TryCancel();
}

template <typename Reactor, typename Out>
int64_t StreamWriter<Reactor, Out>::WriteStalledMs(Tick now) const {
  MutexLock lock(mutex_);
  return writing_ ? now - write_began_ : 0;
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::StartNextWrite() {
  std::optional<Out> next = outbox_.Take();
  if (!next.has_value()) return;
  in_flight_ = *std::move(next);
  writing_ = true;
  write_began_ = SteadyClock().Now();
  this->StartWrite(&in_flight_);
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::FinishIfIdle() {
  if (!closing_ || writing_ || finished_) return;
  finished_ = true;
  this->Finish(ToGrpc(why_));
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::OnWriteDone(bool ok) {
  MutexLock lock(mutex_);
  writing_ = false;
  if (!ok && !closing_) {
    closing_ = true;
    why_ = absl::UnavailableError("the peer is gone");
  }
  // A stream that ends with OK first writes all that waits: WatchSync exists for its last state.
  if (closing_ && (!why_.ok() || outbox_.empty())) {
    FinishIfIdle();
  } else {
    StartNextWrite();
  }
}

template <typename Reactor, typename Out>
void StreamWriter<Reactor, Out>::OnDone() {
  absl::Status why;
  {
    MutexLock lock(mutex_);
    done_ = true;
    why = why_;
  }
  if (registry_ != nullptr) OnClosed(why);
  // Last: whoever waits for the registry to be empty may then destroy what OnClosed uses.
  const std::shared_ptr<StreamWriter> self = std::move(self_);
  if (registry_ != nullptr) registry_->Remove(self);
}

template <typename In, typename Out>
void BidiStream<In, Out>::OnReadDone(bool ok) {
  if (!ok) {
    // gRPC says the same of a client that half-closes and of a message that cannot be parsed, whose
    // fields until there are found in it.
    this->Close(incoming_.ByteSizeLong() == 0
                    ? absl::OkStatus()
                    : Error(absl::StatusCode::kInvalidArgument, "MESSAGE_INVALID",
                            "a message cannot be parsed; is every string of it UTF-8?"));
    return;
  }
  OnMessage(std::move(incoming_));
  incoming_ = In();
  this->ReadAgain([this] { this->StartRead(&incoming_); });
}

}  // namespace lorry::rpc
