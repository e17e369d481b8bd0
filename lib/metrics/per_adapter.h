// Metrics with an `adapter` label, which go with their adapter, and are capped: after kAdaptersMax
// names the rest share `other`, so that a mistake in a naming scheme cannot grow the scrape without
// bound. Not thread-safe: whoever owns it keeps KeepOnly away from the use of a handle.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace lorry::metrics {

inline constexpr size_t kAdaptersMax = 1000;
inline constexpr char kOtherAdapters[] = "other";

// Handles: a Counter, Gauge or Histogram, or a struct of some.
//
//   PerAdapter<Counter> requests(
//       [&](const std::string& adapter) {
//         return registry.AddCounter("lorry_x_total", "...", {{"adapter", adapter}});
//       },
//       [&](const std::string& adapter) {
//         registry.Remove("lorry_x_total", {{"adapter", adapter}});
//       });
//   requests.For("policy").Add();
template <typename Handles>
class PerAdapter {
 public:
  PerAdapter(std::function<Handles(const std::string&)> add,
             std::function<void(const std::string&)> remove)
      : add_(std::move(add)), remove_(std::move(remove)) {}

  Handles& For(std::string_view adapter) {
    auto it = handles_.find(adapter);
    if (it == handles_.end()) {
      const std::string label(handles_.size() < kAdaptersMax ? adapter : kOtherAdapters);
      it = handles_.find(label);
      if (it == handles_.end()) it = handles_.emplace(label, add_(label)).first;
    }
    return it->second;
  }

  // Ends those of all others. An adapter that comes back begins anew.
  void KeepOnly(const std::set<std::string, std::less<>>& adapters) {
    std::erase_if(handles_, [&](const auto& entry) {
      const bool goes = entry.first != kOtherAdapters && !adapters.contains(entry.first);
      if (goes) remove_(entry.first);
      return goes;
    });
  }

 private:
  const std::function<Handles(const std::string&)> add_;
  const std::function<void(const std::string&)> remove_;
  std::map<std::string, Handles, std::less<>> handles_;
};

}  // namespace lorry::metrics
