// One open upload in memory. Internal to images/; Uploads owns it, and checks and transports share
// it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/blob/store.h"
#include "lib/transfer/put_target.h"
#include "services/adapter_store/images/arrived_leaves.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

// One run of the check, which any number of commits wait for. Guarded by its upload's mutex.
struct Uploads::Check {
  std::optional<absl::StatusOr<Version>> result;
  CondVar ended;
};

struct Uploads::Live {
  Live(const Upload& upload, Tick now)
      : record(upload), progress(now), arrived(upload.image_bytes) {}

  std::shared_ptr<transfer::PutTarget> Target() {
    MutexLock lock(mutex);
    return target;
  }
  void ClearTarget() {
    MutexLock lock(mutex);
    target = nullptr;
  }
  bool Checking() {
    MutexLock lock(mutex);
    return check != nullptr;
  }
  // Seals the staged file; from then on a commit, a repeated one too, reads the sealed file.
  absl::Status Seal(blob::Store& blobs) LORRY_REQUIRES(io);

  const Upload record;  // as it was begun
  std::atomic<Tick> progress;
  std::atomic<uint64_t> unledgered = 0;  // bytes that arrived since ranges were last written down
  ArrivedLeaves arrived;

  // Set under `io`, once `target` or `sealed` is there. An upload can be found before that, as it
  // is in the catalogue before its file is allocated; it then takes no range and cannot be
  // committed.
  std::atomic<bool> opened = false;

  // Held while the file is created, synced, checked or sealed; taken before `mutex`.
  Mutex io;
  std::shared_ptr<blob::Staging> staging LORRY_GUARDED_BY(io);
  bool is_sealed LORRY_GUARDED_BY(io) = false;  // the staging; opening it may have failed since
  std::shared_ptr<const blob::Mapping> sealed LORRY_GUARDED_BY(io);  // once set, `target` is null

  Mutex mutex;
  std::shared_ptr<transfer::PutTarget> target LORRY_GUARDED_BY(mutex);
  // The check that runs. One that has stored the version stays here, for commits that come late.
  std::shared_ptr<Check> check LORRY_GUARDED_BY(mutex);
};

}  // namespace lorry::store
