#include "lib/fleet/probe.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lorry::fleet {
namespace {

// What changes at all is at least 1; what is no number is as far as can be.
uint32_t ToPpm(double nats) {
  constexpr double kMost = std::numeric_limits<uint32_t>::max();
  return nats < kMost / 1e6 ? static_cast<uint32_t>(std::ceil(std::max(nats, 0.0) * 1e6))
                            : std::numeric_limits<uint32_t>::max();
}

}  // namespace

bool TellsFromBase(const ReferenceGap& gap) {
  return gap.base.has_value() && 2 * gap.mean < *gap.base;
}

ObservedGap ToObserved(const ReferenceGap& gap) {
  return {.mean_ppm = ToPpm(gap.mean), .max_ppm = ToPpm(gap.max)};
}

}  // namespace lorry::fleet
