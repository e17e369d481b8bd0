#include "lib/fleet/policy.h"

#include <algorithm>

#include "lib/fleet/quiesce.h"

namespace lorry::fleet {

uint32_t MinEngines::Of(uint32_t members) const {
  if (!is_share) return std::max<uint32_t>(1, value);
  const uint64_t rounded_up = (static_cast<uint64_t>(members) * value + 99) / 100;
  return static_cast<uint32_t>(std::max<uint64_t>(1, rounded_up));
}

uint32_t AdapterPolicy::KeepCount() const {
  switch (keep.kind) {
    case KeepRule::Kind::kStalenessPlusOne:
      return max_staleness == std::numeric_limits<uint32_t>::max() ? max_staleness
                                                                   : max_staleness + 1;
    case KeepRule::Kind::kCount:
      return std::max<uint32_t>(1, keep.count);
    case KeepRule::Kind::kAll:
      return std::numeric_limits<uint32_t>::max();
  }
  return 1;
}

int64_t AdapterPolicy::HoldLimitMs() const {
  return barrier_deadline_ms + (WaitsForRequests(quiesce) ? drain_deadline_ms : 0);
}

}  // namespace lorry::fleet
