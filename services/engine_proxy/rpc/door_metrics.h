// What the door counts and times (docs/METRICS.md).
#pragma once

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
#include "services/engine_proxy/door/observer.h"

namespace lorry::proxy {

class DoorMetrics : public door::DoorObserver {
 public:
  explicit DoorMetrics(metrics::Registry& registry);
  void OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) override
      LORRY_EXCLUDES(mutex_);
  void OnReplied(const std::string& adapter, std::optional<uint32_t> lag) override
      LORRY_EXCLUDES(mutex_);
  void OnServed(const std::string& adapter, uint64_t reply_bytes) override LORRY_EXCLUDES(mutex_);
  void OnFlipped(fleet::InFlightMode rule) override;
  void OnRefused(std::string_view reason) override LORRY_EXCLUDES(mutex_);
  void OnDemandWaited(double seconds) override;
  void OnFirstByte(double ms) override;
  void OnDone(int code, double seconds, uint64_t reply_bytes) override LORRY_EXCLUDES(mutex_);
  // What is counted of other adapters ends: they have left the door. The base model stays.
  void KeepOnly(std::set<std::string, std::less<>> adapters) LORRY_EXCLUDES(mutex_);

 private:
  struct OfAdapter {
    metrics::Counter requests, reply_bytes;
    metrics::Histogram admitted_lag, done_lag;
  };

  metrics::Registry& registry_;
  metrics::Histogram first_byte_seconds_, request_seconds_, demand_wait_seconds_;
  metrics::Counter aborted_, resumed_;
  Mutex mutex_;
  std::map<int, metrics::Counter> by_code_ LORRY_GUARDED_BY(mutex_);
  metrics::PerAdapter<OfAdapter> of_adapters_ LORRY_GUARDED_BY(mutex_);
  std::map<std::string, metrics::Counter, std::less<>> by_reason_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::proxy
