#include "lib/rpc/stream_registry.h"

#include <chrono>

namespace lorry::rpc {

bool StreamRegistry::Add(std::shared_ptr<OpenStream> stream) {
  MutexLock lock(mutex_);
  if (closed_) return false;
  open_.insert(std::move(stream));
  return true;
}

void StreamRegistry::Remove(const std::shared_ptr<OpenStream>& stream) {
  MutexLock lock(mutex_);
  open_.erase(stream);
  if (open_.empty()) empty_.notify_all();
}

// Streams are called without the lock: ending one may remove it at once.
std::vector<std::shared_ptr<OpenStream>> StreamRegistry::Open() const {
  MutexLock lock(mutex_);
  return {open_.begin(), open_.end()};
}

void StreamRegistry::CloseAll(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  for (const auto& stream : Open()) stream->Close(status);
}

void StreamRegistry::CancelAll(const absl::Status& status) {
  for (const auto& stream : Open()) stream->Cancel(status);
}

int StreamRegistry::CancelStalled(Tick now, int64_t stall_max_ms) {
  int cancelled = 0;
  for (const auto& stream : Open()) {
    if (stream->WriteStalledMs(now) < stall_max_ms) continue;
    stream->Cancel(absl::DeadlineExceededError("the peer does not read"));
    ++cancelled;
  }
  return cancelled;
}

bool StreamRegistry::WaitEmpty(Tick deadline) {
  const auto left = std::chrono::milliseconds(deadline - SteadyClock().Now());
  MutexLock lock(mutex_);
  const auto until = std::chrono::steady_clock::now() + left;
  while (!open_.empty()) {
    if (empty_.wait_until(mutex_, until) == std::cv_status::timeout) return open_.empty();
  }
  return true;
}

size_t StreamRegistry::size() const {
  MutexLock lock(mutex_);
  return open_.size();
}

}  // namespace lorry::rpc
