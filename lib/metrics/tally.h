// What a thread counts by itself until a scrape takes it over: an addition, where prometheus-cpp takes
// a lock and compares and swaps. For what is counted some ten thousand times a second.
//
// Not thread-safe: whoever owns it takes it over under a lock that the counting thread seldom waits for.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "lib/metrics/registry.h"

namespace lorry::metrics {

class HistogramTally {
 public:
  // Of a histogram with these buckets, which outlive this.
  explicit HistogramTally(std::span<const double> buckets)
      : buckets_(buckets), counts_(buckets.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(buckets_.begin(), buckets_.end(), value);
    ++counts_[static_cast<size_t>(bucket - buckets_.begin())];
    sum_ += value;
  }
  // Leaves nothing here.
  void MoveTo(Histogram& histogram) {
    histogram.ObserveAll(counts_, sum_);
    std::fill(counts_.begin(), counts_.end(), 0);
    sum_ = 0;
  }

 private:
  std::span<const double> buckets_;
  std::vector<double> counts_;  // the last one is of what is above all of them
  double sum_ = 0;
};

}  // namespace lorry::metrics
