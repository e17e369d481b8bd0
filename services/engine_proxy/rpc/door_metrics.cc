#include "services/engine_proxy/rpc/door_metrics.h"

#include <vector>

namespace lorry::proxy {
namespace {

constexpr char kRequests[] = "lorry_door_adapter_requests_total";
constexpr char kReplyBytes[] = "lorry_door_adapter_reply_bytes_total";
constexpr char kAdmittedLag[] = "lorry_door_admitted_lag_decisions";
constexpr char kDoneLag[] = "lorry_door_done_lag_decisions";
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
                                   {{"rule", "resume_on_new"}})),
      of_adapters_(
          [this](const std::string& adapter) {
            const metrics::Labels labels = {{"adapter", adapter}};
            return OfAdapter{
                registry_.AddCounter(kRequests, "Requests for the adapter that were admitted",
                                     labels),
                registry_.AddCounter(kReplyBytes, "Bytes of their replies", labels),
                registry_.AddHistogram(
                    kAdmittedLag, "Decisions that a request's version was behind when admitted",
                    LagBuckets(), labels),
                registry_.AddHistogram(
                    kDoneLag, "Decisions that a request's version was behind when its reply ended",
                    LagBuckets(), labels)};
          },
          [this](const std::string& adapter) {
            for (const char* name : {kRequests, kReplyBytes, kAdmittedLag, kDoneLag}) {
              registry_.Remove(name, {{"adapter", adapter}});
            }
          }) {}

void DoorMetrics::OnFlipped(fleet::InFlightMode rule) {
  (rule == fleet::InFlightMode::kAbort ? aborted_ : resumed_).Add();
}

void DoorMetrics::OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  MutexLock lock(mutex_);
  of_adapters_.For(adapter).admitted_lag.Observe(*lag);
}

void DoorMetrics::OnReplied(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  MutexLock lock(mutex_);
  of_adapters_.For(adapter).done_lag.Observe(*lag);
}

void DoorMetrics::OnServed(const std::string& adapter, uint64_t reply_bytes) {
  MutexLock lock(mutex_);
  OfAdapter& its = of_adapters_.For(adapter);
  its.requests.Add();
  its.reply_bytes.Add(static_cast<double>(reply_bytes));
}

void DoorMetrics::KeepOnly(std::set<std::string, std::less<>> adapters) {
  adapters.insert({"@base", "lorry.binding"});
  MutexLock lock(mutex_);
  of_adapters_.KeepOnly(adapters);
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
