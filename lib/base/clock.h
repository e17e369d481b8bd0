// Time as data. Machines receive `Tick` values; only drivers hold a Clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace lorry {

// Milliseconds since an arbitrary origin that never goes back within a process.
using Tick = int64_t;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Tick Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Tick Now() const override {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

class ManualClock final : public Clock {
 public:
  explicit ManualClock(Tick now = 0) : now_(now) {}
  Tick Now() const override { return now_; }
  void Advance(Tick by_ms) { now_ += by_ms; }

 private:
  Tick now_;
};

}  // namespace lorry
