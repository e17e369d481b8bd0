// The figures that a scrape reads off the catalogue and the disk. A disk that stalls keeps whoever
// reads them, and the probes are answered on the scraper's thread: a store that waits for its disk
// would be taken for dead, and killed. So they are read on a thread of their own.
#pragma once

#include <functional>

#include "lib/base/mutex.h"
#include "lib/metrics/registry.h"
#include "lib/runtime/loop.h"

namespace lorry::store {

class Figures {
 public:
  // `read` sets them. A scrape waits for it for a second at most; then those of before are shown.
  // `registry`, and what `read` uses, outlive this; this outlives the scrapes.
  Figures(metrics::Registry& registry, std::function<void()> read);

 private:
  void Refresh() LORRY_EXCLUDES(mutex_);

  const std::function<void()> read_;
  Mutex mutex_;
  CondVar changed_;
  bool reading_ LORRY_GUARDED_BY(mutex_) = false;
  runtime::Loop loop_{"figures"};  // last: its thread ends before the rest goes
};

}  // namespace lorry::store
