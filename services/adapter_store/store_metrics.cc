#include "services/adapter_store/store_metrics.h"

#include <chrono>
#include <filesystem>
#include <set>

#include "lib/base/error.h"

namespace lorry::store {
namespace {

constexpr char kAdapterBytes[] = "lorry_store_adapter_bytes";
constexpr char kLost[] = "CONNECTION_LOST";
constexpr const char* kTransferErrors[] = {kLost,        "RANGE_CORRUPT",  "RANGE_CONFLICT",
                                           "BAD_TICKET", "TICKET_EXPIRED", "TOO_MANY_SESSIONS"};
constexpr const char* kDeaths[] = {
    "UPLOAD_DEAD",     "ATTEMPT_FENCED",    "RUN_FENCED",    "RANGE_CONFLICT", "RANGE_CORRUPT",
    "IMAGE_MALFORMED", "TENSOR_NOT_FINITE", "NORM_EXCEEDED", "DISK_FULL",      "DISK_FAILED"};
constexpr size_t kAdaptersRead = 1'000;  // at once, of the catalogue

absl::StatusOr<std::vector<Adapter>> AllAdapters(Catalog& catalog) {
  std::vector<Adapter> all;
  while (true) {
    auto some = catalog.ListAdapters(all.empty() ? "" : all.back().name.value, kAdaptersRead);
    if (!some.ok()) return some.status();
    all.insert(all.end(), some->begin(), some->end());
    if (some->size() < kAdaptersRead) return all;
  }
}

}  // namespace

StoreMetrics::StoreMetrics(metrics::Registry& registry)
    : registry_(registry),
      upload_seconds_(registry.AddHistogram(
          "lorry_store_upload_seconds",
          "One upload that was stored: from its first BeginUpload until it is a version",
          metrics::DurationBuckets())),
      evicted_(registry.AddCounter("lorry_store_gc_deleted_total",
                                   "Versions deleted because nothing held them any more")),
      shares_(
          [&registry](const std::string& adapter) {
            return Share{adapter,
                         registry.AddGauge(kAdapterBytes, "Bytes of the adapter's stored images",
                                           {{"adapter", adapter}})};
          },
          [&registry](const std::string& adapter) {
            registry.Remove(kAdapterBytes, {{"adapter", adapter}});
          }) {
  // Prometheus counts no death that a series begins with.
  for (const std::string_view reason : kDeaths) (void)UploadsEnded("dead", reason);
}

void StoreMetrics::UploadStored(int64_t took_ms) {
  UploadEnded("stored", "");
  upload_seconds_.Observe(static_cast<double>(took_ms) / 1000);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  Set("lorry_store_last_stored_timestamp_seconds", "Unix time at which a version was last stored",
      now.count());
}

void StoreMetrics::UploadEnded(std::string_view result, std::string_view reason) {
  UploadsEnded(result, reason).Add();
}

void StoreMetrics::Set(const std::string& name, const std::string& help, double value) {
  registry_.AddGauge(name, help).Set(value);
}

metrics::Counter StoreMetrics::UploadsEnded(std::string_view result, std::string_view reason) {
  return registry_.AddCounter(
      "lorry_store_uploads_total",
      "Uploads that ended: result is stored or dead, reason says why one died",
      {{"result", std::string(result)}, {"reason", std::string(reason)}});
}

metrics::Counter StoreMetrics::TransferErrors(std::string_view transport, std::string_view reason) {
  return registry_.AddCounter(
      "lorry_transfer_errors_total", "Transfers that failed; a peer that left is none",
      {{"transport", std::string(transport)}, {"reason", std::string(reason)}});
}

void StoreMetrics::TransferFailed(const transfer::FailedSession& failed) {
  const std::string reason = ReasonOf(failed.why);
  TransferErrors(failed.transport, reason.empty() ? kLost : reason).Add();
}

void StoreMetrics::Refresh(const std::string& data_dir) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(data_dir, error);
  if (error) return;
  Set("lorry_store_disk_free_bytes", "Bytes that are free where the store keeps its data",
      static_cast<double>(space.available));
}

void StoreMetrics::Refresh(Catalog& catalog) {
  const absl::StatusOr<Totals> totals = catalog.Count();
  if (!totals.ok()) return;  // the gauges keep what was last true
  Set("lorry_store_versions", "Versions that are stored and not being deleted",
      static_cast<double>(totals->versions));
  Set("lorry_store_blob_bytes", "Bytes of all stored images",
      static_cast<double>(totals->stored_bytes));
  Set("lorry_store_uploads_open", "Uploads that have begun and neither committed nor died",
      static_cast<double>(totals->open_uploads));
  RefreshShares(catalog);
}

void StoreMetrics::RefreshShares(Catalog& catalog) {
  const absl::StatusOr<std::vector<Adapter>> adapters = AllAdapters(catalog);
  if (!adapters.ok()) return;
  std::set<std::string, std::less<>> names;
  for (const Adapter& adapter : *adapters) names.insert(adapter.name.value);
  MutexLock lock(mutex_);
  shares_.KeepOnly(names);
  std::map<std::string, uint64_t> bytes;
  for (const Adapter& adapter : *adapters)
    bytes[shares_.For(adapter.name.value).label] += adapter.stored_bytes;
  has_others_ = has_others_ || bytes.contains(metrics::kOtherAdapters);
  // Theirs does not end, and says 0 once every adapter has one of its own.
  if (has_others_) bytes.try_emplace(metrics::kOtherAdapters, 0);
  for (const auto& [label, sum] : bytes) shares_.For(label).bytes.Set(static_cast<double>(sum));
}

void StoreMetrics::Refresh(const std::string& transport, const transfer::TransportStats& stats) {
  transfer::TransportStats last;
  {
    MutexLock lock(mutex_);
    last = std::exchange(last_[transport], stats);
  }
  const auto bytes = [&](const char* direction, uint64_t now, uint64_t before) {
    registry_
        .AddCounter("lorry_transfer_bytes_total",
                    "Image bytes moved: transport is ucx-shm, ucx-net, relay or grpc, direction is "
                    "in or out",
                    {{"transport", transport}, {"direction", direction}})
        .Add(static_cast<double>(now - before));
  };
  // As with deaths.
  for (const std::string_view reason : kTransferErrors) (void)TransferErrors(transport, reason);
  bytes("in", stats.bytes_received, last.bytes_received);
  bytes("out", stats.bytes_sent, last.bytes_sent);
}

}  // namespace lorry::store
