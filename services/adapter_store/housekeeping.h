// The store's one background thread: idle uploads, ledgers, garbage, old log entries.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

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

 private:
  void Run();
  void Sweep();

  Catalog& catalog_;
  Uploads& uploads_;
  Collector& collector_;
  const std::chrono::milliseconds interval_;
  std::chrono::steady_clock::time_point next_tidy_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lorry::store
