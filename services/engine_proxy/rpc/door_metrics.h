// What the door counts and times (docs/METRICS.md).
//
// What each request counts is counted in the room of its thread, and taken over at each scrape: the
// door's threads would wait for each other, and for prometheus-cpp's locks, several times a request.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "lib/base/mutex.h"
#include "lib/metrics/per_adapter.h"
#include "lib/metrics/registry.h"
#include "lib/metrics/tally.h"
#include "services/engine_proxy/door/observer.h"

namespace lorry::proxy {

class DoorMetrics : public door::DoorObserver {
 public:
  explicit DoorMetrics(metrics::Registry& registry);
  void OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) override;
  void OnReplied(const std::string& adapter, std::optional<uint32_t> lag) override;
  void OnServed(const std::string& adapter, uint64_t reply_bytes) override;
  void OnFlipped(fleet::InFlightMode rule) override;
  void OnRefused(std::string_view reason) override LORRY_EXCLUDES(mutex_);
  void OnDemandWaited(double seconds) override;
  void OnFirstByte(double ms) override;
  void OnDone(int code, double seconds, uint64_t reply_bytes) override;
  // What is counted of other adapters ends: they have left the door. The base model stays.
  void KeepOnly(std::set<std::string, std::less<>> adapters) LORRY_EXCLUDES(mutex_);

 private:
  struct OfAdapter {
    metrics::Counter requests, reply_bytes;
    metrics::Histogram admitted_lag, done_lag;
  };
  struct Counted {
    struct OfAdapter {
      uint64_t requests = 0, reply_bytes = 0;
      metrics::HistogramTally admitted_lag, done_lag;
      OfAdapter();
    };
    metrics::HistogramTally first_byte_seconds, request_seconds;
    std::map<int, uint64_t> by_code;
    std::map<std::string, OfAdapter, std::less<>> adapters;  // as many as PerAdapter has
    Counted();
    OfAdapter& Of(std::string_view adapter);
  };
  // On a cache line of its own, so that a thread that counts does not slow another one down.
  struct alignas(64) Room {
    Mutex mutex;
    Counted counted LORRY_GUARDED_BY(mutex);
  };
  Room& Mine();  // two threads may share one
  void TakeOver() LORRY_EXCLUDES(mutex_);
  void TakeOver(Counted& counted) LORRY_REQUIRES(mutex_);

  metrics::Registry& registry_;
  metrics::Histogram first_byte_seconds_, request_seconds_, demand_wait_seconds_;
  metrics::Counter aborted_, resumed_;
  std::array<Room, 8> rooms_;
  Mutex mutex_;
  std::map<int, metrics::Counter> by_code_ LORRY_GUARDED_BY(mutex_);
  metrics::PerAdapter<OfAdapter> of_adapters_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, metrics::Counter, std::less<>> by_reason_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::proxy
