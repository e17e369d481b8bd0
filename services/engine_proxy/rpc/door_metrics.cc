#include "services/engine_proxy/rpc/door_metrics.h"

#include <vector>

namespace lorry::proxy {
namespace {

constexpr char kFlippedHelp[] = "Requests whose row flipped while they ran, and did not finish";

// Decisions; policies allow 0 to a few.
std::vector<double> LagBuckets() { return {0, 1, 2, 3, 4, 8, 16, 32}; }

}  // namespace

DoorMetrics::DoorMetrics(metrics::Registry& registry)
    : registry_(registry),
      first_byte_seconds_(registry.AddHistogram(
          "lorry_door_first_byte_seconds",
          "From the request's last byte to the first byte of the reply's body",
          metrics::DurationBuckets())),
      request_seconds_(registry.AddHistogram("lorry_door_request_seconds",
                                             "From the request's first byte to the reply's last",
                                             metrics::DurationBuckets())),
      demand_wait_seconds_(registry.AddHistogram(
          "lorry_door_demand_wait_seconds",
          "One wait of a request for an adapter that is loaded on demand, whatever ended it",
          metrics::DurationBuckets())),
      aborted_(registry.AddCounter("lorry_door_flipped_total", kFlippedHelp, {{"rule", "abort"}})),
      resumed_(registry.AddCounter("lorry_door_flipped_total", kFlippedHelp,
                                   {{"rule", "resume_on_new"}})) {}

void DoorMetrics::OnFlipped(fleet::InFlightRule rule) {
  (rule == fleet::InFlightRule::kAbort ? aborted_ : resumed_).Add();
}

void DoorMetrics::OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  MutexLock lock(mutex_);
  LagsOf(adapter).admitted.Observe(*lag);
}

void DoorMetrics::OnReplied(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  MutexLock lock(mutex_);
  LagsOf(adapter).done.Observe(*lag);
}

DoorMetrics::Lags& DoorMetrics::LagsOf(const std::string& adapter) {
  const auto it = lags_.find(adapter);
  if (it != lags_.end()) return it->second;
  const auto add = [&](const char* name, const char* help) {
    return registry_.AddHistogram(name, help, LagBuckets(), {{"adapter", adapter}});
  };
  return lags_
      .emplace(adapter,
               Lags{add("lorry_door_admitted_lag_decisions",
                        "Decisions that a request's version was behind when it was admitted"),
                    add("lorry_door_done_lag_decisions",
                        "Decisions that a request's version was behind when its reply had ended")})
      .first->second;
}

void DoorMetrics::OnRefused(std::string_view reason) {
  MutexLock lock(mutex_);
  auto it = by_reason_.find(reason);
  if (it == by_reason_.end()) {
    const std::string label(reason);
    it = by_reason_
             .emplace(label, registry_.AddCounter("lorry_door_refused_total",
                                                  "Requests that the door refused itself",
                                                  {{"reason", label}}))
             .first;
  }
  it->second.Add();
}

void DoorMetrics::OnDemandWaited(double seconds) { demand_wait_seconds_.Observe(seconds); }

void DoorMetrics::OnFirstByte(double ms) { first_byte_seconds_.Observe(ms / 1e3); }

void DoorMetrics::OnDone(int code, double seconds, uint64_t) {
  request_seconds_.Observe(seconds);
  MutexLock lock(mutex_);
  auto it = by_code_.find(code);
  if (it == by_code_.end()) {
    it = by_code_
             .emplace(code, registry_.AddCounter("lorry_door_requests_total",
                                                 "Requests answered at the door, by status code",
                                                 {{"code", std::to_string(code)}}))
             .first;
  }
  it->second.Add();
}

}  // namespace lorry::proxy
