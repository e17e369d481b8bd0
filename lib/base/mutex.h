// std::mutex with clang's capability attributes, so that -Wthread-safety checks GUARDED_BY.
// absl::Mutex is not used: Debian's is not instrumented, and ThreadSanitizer reports correct code.
#pragma once

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define LORRY_TSA(x) __attribute__((x))
#else
#define LORRY_TSA(x)
#endif
#define LORRY_GUARDED_BY(x) LORRY_TSA(guarded_by(x))
#define LORRY_REQUIRES(...) LORRY_TSA(requires_capability(__VA_ARGS__))
#define LORRY_EXCLUDES(...) LORRY_TSA(locks_excluded(__VA_ARGS__))

namespace lorry {

class LORRY_TSA(capability("mutex")) Mutex {
 public:
  void lock() LORRY_TSA(acquire_capability()) { mutex_.lock(); }
  void unlock() LORRY_TSA(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class LORRY_TSA(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LORRY_TSA(acquire_capability(mutex)) : mutex_(mutex) {
    mutex_.lock();
  }
  ~MutexLock() LORRY_TSA(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds: cv.wait(mutex).
using CondVar = std::condition_variable_any;

}  // namespace lorry
