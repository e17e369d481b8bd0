#include "services/engine_proxy/rpc/door_metrics.h"

#include <atomic>
#include <vector>

namespace lorry::proxy {
namespace {

constexpr char kRequests[] = "lorry_door_adapter_requests_total";
constexpr char kReplyBytes[] = "lorry_door_adapter_reply_bytes_total";
constexpr char kAdmittedLag[] = "lorry_door_admitted_lag_decisions";
constexpr char kDoneLag[] = "lorry_door_done_lag_decisions";
constexpr char kFlippedHelp[] = "Requests whose row flipped while they ran, and did not finish";

// Decisions; policies allow 0 to a few.
const std::vector<double>& LagBuckets() {
  static const std::vector<double> buckets = {0, 1, 2, 3, 4, 8, 16, 32};
  return buckets;
}

const std::vector<double>& SecondBuckets() {
  static const std::vector<double> buckets = metrics::DurationBuckets();
  return buckets;
}

}  // namespace

DoorMetrics::DoorMetrics(metrics::Registry& registry)
    : registry_(registry),
      first_byte_seconds_(registry.AddHistogram(
          "lorry_door_first_byte_seconds",
          "From the request's last byte to the first byte of the reply's body", SecondBuckets())),
      request_seconds_(registry.AddHistogram("lorry_door_request_seconds",
                                             "From the request's first byte to the reply's last",
                                             SecondBuckets())),
      demand_wait_seconds_(registry.AddHistogram(
          "lorry_door_demand_wait_seconds",
          "One wait of a request for an adapter that is loaded on demand, whatever ended it",
          SecondBuckets())),
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
          }) {
  registry.OnScrape([this] { TakeOver(); });
}

DoorMetrics::Counted::OfAdapter::OfAdapter() : admitted_lag(LagBuckets()), done_lag(LagBuckets()) {}

DoorMetrics::Counted::Counted()
    : first_byte_seconds(SecondBuckets()), request_seconds(SecondBuckets()) {}

DoorMetrics::Counted::OfAdapter& DoorMetrics::Counted::Of(std::string_view adapter) {
  const auto it = adapters.find(adapter);
  if (it != adapters.end()) return it->second;
  const bool has_room = adapters.size() < metrics::kAdaptersMax;
  return adapters[std::string(has_room ? adapter : metrics::kOtherAdapters)];
}

DoorMetrics::Room& DoorMetrics::Mine() {
  static std::atomic<size_t> threads = 0;
  static thread_local const size_t mine = threads++;
  return rooms_[mine % rooms_.size()];
}

void DoorMetrics::TakeOver() {
  MutexLock lock(mutex_);
  for (Room& room : rooms_) {
    MutexLock quick(room.mutex);
    TakeOver(room.counted);
  }
}

void DoorMetrics::TakeOver(Counted& counted) {
  counted.first_byte_seconds.MoveTo(first_byte_seconds_);
  counted.request_seconds.MoveTo(request_seconds_);
  for (auto& [code, requests] : std::exchange(counted.by_code, {})) {
    auto it = by_code_.find(code);
    if (it == by_code_.end()) {
      it = by_code_
               .emplace(code, registry_.AddCounter("lorry_door_requests_total",
                                                   "Requests answered at the door, by status code",
                                                   {{"code", std::to_string(code)}}))
               .first;
    }
    it->second.Add(static_cast<double>(requests));
  }
  for (auto& [adapter, its] : std::exchange(counted.adapters, {})) {
    OfAdapter& all = of_adapters_.For(adapter);
    all.requests.Add(static_cast<double>(its.requests));
    all.reply_bytes.Add(static_cast<double>(its.reply_bytes));
    its.admitted_lag.MoveTo(all.admitted_lag);
    its.done_lag.MoveTo(all.done_lag);
  }
}

void DoorMetrics::OnFlipped(fleet::InFlightMode rule) {
  (rule == fleet::InFlightMode::kAbort ? aborted_ : resumed_).Add();
}

void DoorMetrics::OnAdmitted(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  Room& room = Mine();
  MutexLock lock(room.mutex);
  room.counted.Of(adapter).admitted_lag.Observe(*lag);
}

void DoorMetrics::OnReplied(const std::string& adapter, std::optional<uint32_t> lag) {
  if (!lag) return;
  Room& room = Mine();
  MutexLock lock(room.mutex);
  room.counted.Of(adapter).done_lag.Observe(*lag);
}

void DoorMetrics::OnServed(const std::string& adapter, uint64_t reply_bytes) {
  Room& room = Mine();
  MutexLock lock(room.mutex);
  Counted::OfAdapter& its = room.counted.Of(adapter);
  ++its.requests;
  its.reply_bytes += reply_bytes;
}

void DoorMetrics::KeepOnly(std::set<std::string, std::less<>> adapters) {
  adapters.insert({"@base", "lorry.binding"});
  TakeOver();
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

void DoorMetrics::OnFirstByte(double ms) {
  Room& room = Mine();
  MutexLock lock(room.mutex);
  room.counted.first_byte_seconds.Observe(ms / 1e3);
}

void DoorMetrics::OnDone(int code, double seconds, uint64_t) {
  Room& room = Mine();
  MutexLock lock(room.mutex);
  room.counted.request_seconds.Observe(seconds);
  ++room.counted.by_code[code];
}

}  // namespace lorry::proxy
