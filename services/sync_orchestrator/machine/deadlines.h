// Deadlines of many things, of which the next is found without looking at the others.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "lib/base/clock.h"

namespace lorry::sync {

// One deadline for each key. A later Set replaces it, and a Set without a time clears it.
template <typename Key>
class Deadlines {
 public:
  void Set(const Key& key, std::optional<Tick> at) {
    Clear(key);
    if (!at.has_value()) return;
    at_.emplace(key, *at);
    queue_.emplace(*at, key);
  }
  void Clear(const Key& key) {
    const auto it = at_.find(key);
    if (it == at_.end()) return;
    queue_.erase({it->second, key});
    at_.erase(it);
  }
  // The keys whose deadlines have passed; their deadlines are cleared.
  std::vector<Key> TakeDue(Tick now) {
    std::vector<Key> due;
    while (!queue_.empty() && queue_.begin()->first <= now) {
      due.push_back(queue_.begin()->second);
      at_.erase(due.back());
      queue_.erase(queue_.begin());
    }
    return due;
  }
  std::optional<Tick> next() const {
    if (queue_.empty()) return std::nullopt;
    return queue_.begin()->first;
  }

 private:
  std::map<Key, Tick> at_;
  std::set<std::pair<Tick, Key>> queue_;
};

}  // namespace lorry::sync
