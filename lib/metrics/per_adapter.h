// A metric with an `adapter` label, capped: after kAdaptersMax names the rest share `other`, so
// that a mistake in a naming scheme cannot grow the scrape without bound.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/metrics/registry.h"

namespace lorry::metrics {

inline constexpr size_t kAdaptersMax = 1000;
inline constexpr char kOtherAdapters[] = "other";

// Handle: Counter, Gauge or Histogram. For() takes a lock and a lookup; keep the handle where it is
// hot.
//
//   PerAdapter<Counter> requests([&](const Labels& labels) { return
//   registry.AddCounter("lorry_door_requests_total", "...", labels); });
//   requests.For("policy").Add();
template <typename Handle>
class PerAdapter {
 public:
  explicit PerAdapter(std::function<Handle(const Labels&)> add, Labels others = {})
      : add_(std::move(add)), others_(std::move(others)) {}

  Handle For(std::string_view adapter) {
    MutexLock lock(mutex_);
    auto it = handles_.find(adapter);
    if (it == handles_.end()) {
      const std::string label(handles_.size() < kAdaptersMax ? adapter : kOtherAdapters);
      if (label == kOtherAdapters) {
        if (const auto other = handles_.find(label); other != handles_.end()) return other->second;
      }
      Labels labels = others_;
      labels["adapter"] = label;
      it = handles_.emplace(label, add_(labels)).first;
    }
    return it->second;
  }

 private:
  const std::function<Handle(const Labels&)> add_;
  const Labels others_;
  Mutex mutex_;
  std::map<std::string, Handle, std::less<>> handles_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::metrics
