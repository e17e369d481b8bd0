// Waiting for what other threads and processes do, which notify nobody.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace lorry {

// Whether it came to be within `limit`.
inline bool Eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    // tidy: allow sleep: a bounded poll
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace lorry
