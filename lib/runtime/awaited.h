// A value that one thread waits for and another brings, once. Any thread; shared by both, because
// whoever waits may give up first.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "lib/base/mutex.h"

namespace lorry::runtime {

template <typename T>
class Awaited {
 public:
  void Set(T value) {
    MutexLock lock(mutex_);
    value_ = std::move(value);
    brought_.notify_all();
  }

  // Nothing when it did not come within `wait_ms`; zero or less looks without waiting.
  std::optional<T> Take(int64_t wait_ms) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
    MutexLock lock(mutex_);
    while (!value_.has_value()) {
      if (brought_.wait_until(mutex_, until) == std::cv_status::timeout) break;
    }
    return std::exchange(value_, std::nullopt);
  }

 private:
  Mutex mutex_;
  CondVar brought_;
  std::optional<T> value_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::runtime
