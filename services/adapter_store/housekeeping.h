// The store's one background thread: idle uploads, ledgers, garbage, old log entries, and the proof
// that the store can still write.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/collector.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

class Housekeeping {
 public:
  // All outlive it.
  Housekeeping(Catalog& catalog, Uploads& uploads, Collector& collector, int64_t interval_ms);
  ~Housekeeping();  // joins
  // Whether something could be written lately: OK; what the last try failed with; or UNAVAILABLE
  // when no try has ended for too long, as on a disk that hangs. Never blocks on the disk.
  absl::Status Writable() const LORRY_EXCLUDES(mutex_);

 private:
  void Run();
  void Sweep();
  void ProveWritable() LORRY_EXCLUDES(mutex_);

  Catalog& catalog_;
  Uploads& uploads_;
  Collector& collector_;
  const std::chrono::milliseconds interval_;
  std::chrono::steady_clock::time_point next_tidy_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point next_proof_;
  absl::Status proof_ LORRY_GUARDED_BY(mutex_) = absl::UnavailableError("the store is starting");
  std::chrono::steady_clock::time_point proved_at_ LORRY_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  std::thread thread_;
};

}  // namespace lorry::store
