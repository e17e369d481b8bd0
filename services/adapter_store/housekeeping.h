// The store's one background thread: idle uploads, ledgers, garbage, old log entries, and the proof
// that the store can still write.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/runtime/loop.h"
#include "services/adapter_store/catalog/catalog.h"
#include "services/adapter_store/images/collector.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

class Housekeeping {
 public:
  // All outlive it. `on_fatal` is told, on this object's thread, that nothing can be written until
  // the database is opened again (STORE_FAILED).
  Housekeeping(Catalog& catalog, Uploads& uploads, Collector& collector, int64_t interval_ms,
               std::function<void(const absl::Status&)> on_fatal);
  // Whether something could be written lately: OK; what the last try failed with; or UNAVAILABLE
  // when no try has ended for too long, as on a disk that hangs. Never blocks on the disk.
  absl::Status Writable() const LORRY_EXCLUDES(mutex_);

 private:
  void Sweep();  // and again after the interval
  void ProveWritable() LORRY_EXCLUDES(mutex_);

  Catalog& catalog_;
  Uploads& uploads_;
  Collector& collector_;
  const int64_t interval_ms_;
  const std::function<void(const absl::Status&)> on_fatal_;
  std::chrono::steady_clock::time_point next_tidy_;
  mutable Mutex mutex_;
  std::chrono::steady_clock::time_point next_proof_;
  absl::Status proof_ LORRY_GUARDED_BY(mutex_) = absl::UnavailableError("the store is starting");
  std::chrono::steady_clock::time_point proved_at_ LORRY_GUARDED_BY(mutex_) =
      std::chrono::steady_clock::now();
  runtime::Loop loop_{"housekeeping"};  // last: its thread ends before the rest goes
};

}  // namespace lorry::store
