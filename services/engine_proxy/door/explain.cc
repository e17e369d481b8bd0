#include "services/engine_proxy/door/explain.h"

#include <algorithm>
#include <utility>

namespace lorry::door {
namespace {

// A batch may name thousands of adapters; a few tell what it was.
constexpr size_t kListedReferences = 8;

}  // namespace

void ExplainRing::Put(Explained explained) {
  explained.asked.resize(std::min(explained.asked.size(), kListedReferences));
  explained.resolved.resize(std::min(explained.resolved.size(), kListedReferences));
  // Copied: a record that is long out of the cache is written over in its place, and the next request
  // gets the memory that this one used. What was a batch leaves no room behind.
  MutexLock lock(mutex_);
  if (ring_.size() < capacity_) {
    ring_.push_back(explained);
  } else {
    ring_[next_] = explained;
  }
  next_ = (next_ + 1) % capacity_;
}

std::optional<Explained> ExplainRing::Find(std::string_view id) const {
  MutexLock lock(mutex_);
  for (size_t i = 1; i <= ring_.size(); ++i) {
    const Explained& one = ring_[(next_ + capacity_ - i) % capacity_];
    if (one.request_id == id || (!id.empty() && one.client_id == id)) return one;
  }
  return std::nullopt;
}

std::vector<Explained> ExplainRing::Recent(size_t limit) const {
  MutexLock lock(mutex_);
  std::vector<Explained> out;
  for (size_t i = 1; i <= std::min(limit, ring_.size()); ++i) {
    out.push_back(ring_[(next_ + capacity_ - i) % capacity_]);
  }
  return out;
}

}  // namespace lorry::door
