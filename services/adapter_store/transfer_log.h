// Names the peers whose transfers failed: bytes that arrive broken from one host again and again
// point at its memory, or at the way to it. Thread-safe; keeps nobody waiting but for a line.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/transfer/server.h"

namespace lorry::store {

class TransferLog {
 public:
  explicit TransferLog(const Clock& clock) : clock_(clock) {}  // outlives it

  // A line for the first of each host and reason, and then one a minute with how many came between.
  void OnFailed(const transfer::FailedSession& failed) LORRY_EXCLUDES(mutex_);

 private:
  struct Told {
    Tick at = 0;
    uint64_t since = 0;  // not told
  };

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::pair<std::string, std::string>, Told> told_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::store
