#include "services/adapter_store/housekeeping.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "lib/base/error.h"

namespace lorry::store {
namespace {

// Dead uploads are remembered for an hour and the log for 100,000 revisions: once a minute is often
// enough to look for what may be forgotten, since looking reads every one of them.
constexpr std::chrono::minutes kTidyInterval(1);
// One small transaction, as often as probes usually ask.
constexpr std::chrono::seconds kProofInterval(10);
// A sweep may wait for a disk that is busy with large images; three proofs missed are no accident.
constexpr std::chrono::seconds kProofAgeMax(60);

}  // namespace

Housekeeping::Housekeeping(Catalog& catalog, Uploads& uploads, Collector& collector,
                           int64_t interval_ms, std::function<void(const absl::Status&)> on_fatal)
    : catalog_(catalog),
      uploads_(uploads),
      collector_(collector),
      interval_ms_(interval_ms),
      on_fatal_(std::move(on_fatal)) {
  loop_.PostAnswer([this] { Sweep(); });
}

void Housekeeping::ProveWritable() {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_proof_) return;
  next_proof_ = now + kProofInterval;
  absl::Status written = catalog_.ProveWritable();
  if (!written.ok()) spdlog::error("the store cannot write: {}", written.ToString());
  if (ReasonOf(written) == "STORE_FAILED") on_fatal_(written);
  MutexLock lock(mutex_);
  proof_ = std::move(written);
  proved_at_ = std::chrono::steady_clock::now();
}

absl::Status Housekeeping::Writable() const {
  MutexLock lock(mutex_);
  if (std::chrono::steady_clock::now() - proved_at_ <= kProofAgeMax) return proof_;
  return absl::UnavailableError("nothing could be written for a minute: the disk hangs");
}

void Housekeeping::Sweep() {
  loop_.After(interval_ms_, [this] { Sweep(); });
  ProveWritable();
  uploads_.Sweep();
  if (const auto removed = collector_.Run(); !removed.ok()) {
    spdlog::warn("garbage could not be removed, the next sweep tries again: {}",
                 removed.status().ToString());
  } else if (*removed > 0) {
    spdlog::info("removed {} image files that nothing needs any more", *removed);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now < next_tidy_) return;
  next_tidy_ = now + kTidyInterval;
  if (absl::Status tidied = catalog_.Tidy(); !tidied.ok()) {
    spdlog::warn("the catalogue could not be tidied: {}", tidied.ToString());
  }
}

}  // namespace lorry::store
