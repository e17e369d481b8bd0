// The part of a reconnecting stream that does not depend on its messages: a thread that dials,
// waits for the end, backs off, dials again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "lib/base/mutex.h"
#include "lib/base/prng.h"

namespace lorry::rpc {

struct Backoff {
  // A restarted service answers within a few hundred ms; 500 members that dial every 2 s are 250
  // dials a second. This wait and the channel's own, of 2 s too, end before an orchestrator that
  // was restarted takes a member for LOST (5 s).
  int64_t min_ms = 100;
  int64_t max_ms = 2'000;
  uint64_t jitter_seed = 0;  // 0: from the process id and the time
};

// The wait after so many tries in a row that were of no use: doubles from min to max, less up to
// half by jitter.
int64_t BackoffMs(const Backoff& backoff, int failures, Prng& prng);

// One try to hold a stream open.
class Dial {
 public:
  virtual ~Dial() = default;
  virtual void Cancel() = 0;
  // Blocks until the try has ended and its last callback has returned. True when a message came.
  virtual bool Wait() = 0;
};

class Reconnector {
 public:
  Reconnector(Backoff backoff, std::function<std::shared_ptr<Dial>()> dial);
  ~Reconnector();  // Stop()
  void Start();
  void Redial();
  // The same for an owner that could not take what it heard: as after a try of no use, the next one
  // waits for longer each time.
  void RedialInVain();
  // No try follows the one at hand, which goes on. From any thread, a callback included.
  void Finish();
  void Stop();  // cancels the try at hand and waits for its end; not from a callback

 private:
  void Run();
  std::shared_ptr<Dial> Begin();  // null once stopping
  void Pause(int64_t wait_ms);
  const Backoff backoff_;
  const std::function<std::shared_ptr<Dial>()> dial_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Dial> current_ LORRY_GUARDED_BY(mutex_);
  std::atomic<bool> redialled_ = false;  // the try at hand ends because its owner wants another
  std::atomic<bool> in_vain_ = false;    // what was heard in it was of no use
  std::thread thread_;
};

}  // namespace lorry::rpc
