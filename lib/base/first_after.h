// The first of several instants that are still to come: when a machine wants to be woken.
#pragma once

#include <optional>

#include "lib/base/clock.h"

namespace lorry {

class FirstAfter {
 public:
  explicit FirstAfter(Tick now) : now_(now) {}
  // What has passed counts for nothing, and so does none.
  void At(std::optional<Tick> tick) {
    if (tick.has_value() && *tick > now_ && (!first_.has_value() || *tick < *first_)) first_ = tick;
  }
  // None: nothing is still to come.
  std::optional<Tick> first() const { return first_; }

 private:
  Tick now_;
  std::optional<Tick> first_;
};

}  // namespace lorry
