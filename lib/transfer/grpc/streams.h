// Streams that are open, and a thread that looks at them every so often: idle deadlines, deferred
// work. Internal to lib/transfer/grpc. gRPC 1.51 neither notices stopped peers nor ends a Shutdown
// while a stream is open.
#pragma once

#include <chrono>
#include <set>
#include <thread>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"

namespace lorry::transfer {

// A stream as the sweeper sees it. Called from the sweeper's thread, never after Remove has
// returned.
class SweptStream {
 public:
  virtual ~SweptStream() = default;
  virtual void Sweep(Tick now) = 0;
  virtual void Abort() = 0;  // end soon, whatever the state
};

class Streams {
 public:
  static constexpr auto kPeriod = std::chrono::milliseconds(10);

  Streams() : thread_([this] { Run(); }) {}
  ~Streams() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    thread_.join();
  }

  // False once closed: the stream is to end at once, and is not added.
  bool Add(SweptStream* stream) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    streams_.insert(stream);
    changed_.notify_all();
    return true;
  }
  void Remove(SweptStream* stream) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    streams_.erase(stream);
    changed_.notify_all();
  }
  size_t size() LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return streams_.size();
  }
  // Aborts all, refuses new ones, waits until none is left.
  void CloseAndWait() LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    for (SweptStream* stream : streams_) stream->Abort();
    while (!streams_.empty()) changed_.wait(mutex_);
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    while (!stopping_) {
      if (streams_.empty()) {
        changed_.wait(mutex_);
        continue;
      }
      changed_.wait_for(mutex_, kPeriod);
      for (SweptStream* stream : streams_) stream->Sweep(clock_.Now());
    }
  }

  const SteadyClock clock_;
  Mutex mutex_;
  CondVar changed_;
  std::set<SweptStream*> streams_ LORRY_GUARDED_BY(mutex_);
  bool closed_ LORRY_GUARDED_BY(mutex_) = false;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lorry::transfer
