#include "tests/fuzz/rpc/raw_call.h"

#include <utility>

namespace lorry::fuzz {
namespace {

constexpr size_t kMessagesKept = 8;
constexpr size_t kMessageBytesKept = 64 << 10;  // of what only its end tells anything about

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

}  // namespace

std::shared_ptr<RawCall> RawCall::Start(grpc::GenericStub& stub, const std::string& method) {
  std::shared_ptr<RawCall> call(new RawCall);
  call->self_ = call;
  stub.PrepareBidiStreamingCall(&call->context_, method, grpc::StubOptions(), call.get());
  // Writes come from outside of the reactions: until HalfClose the call may not end by itself.
  call->AddHold();
  call->StartRead(&call->read_);
  call->StartCall();
  return call;
}

void RawCall::Send(const std::string& message) {
  const grpc::Slice slice(message);
  const std::lock_guard lock(mutex_);
  if (half_close_) return;
  out_.emplace_back(&slice, 1);
  Pump();
}

void RawCall::HalfClose() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(half_close_, true)) return;
  Pump();
}

void RawCall::Pump() {
  if (writing_) return;
  if (!out_.empty()) {
    writing_ = true;
    StartWrite(&out_.front());
  } else if (half_close_ && !std::exchange(half_closed_, true)) {
    StartWritesDone();
    RemoveHold();
  }
}

void RawCall::OnWriteDone(bool ok) {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  if (ok) {
    out_.pop_front();
  } else {
    out_.clear();
  }
  Pump();
}

void RawCall::OnReadDone(bool ok) {
  if (!ok) return HalfClose();
  {
    const std::lock_guard lock(mutex_);
    in_.push_back(read_.Length() <= kMessageBytesKept ? BytesOf(read_) : std::string());
    if (in_.size() > kMessagesKept) in_.pop_front();
  }
  changed_.notify_all();
  StartRead(&read_);
}

void RawCall::OnDone(const grpc::Status& status) {
  const std::shared_ptr<RawCall> self = std::move(self_);
  const std::lock_guard lock(mutex_);
  done_ = true;
  status_ = status;
  changed_.notify_all();
}

bool RawCall::WaitForEnd(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, limit, [this] { return done_; });
}

std::optional<std::string> RawCall::WaitForMessage(std::chrono::milliseconds limit) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, limit, [this] { return done_ || !in_.empty(); });
  if (in_.empty()) return std::nullopt;
  std::string message = std::move(in_.front());
  in_.pop_front();
  return message;
}

bool RawCall::ended() {
  const std::lock_guard lock(mutex_);
  return done_;
}

grpc::Status RawCall::status() {
  const std::lock_guard lock(mutex_);
  return status_;
}

}  // namespace lorry::fuzz
