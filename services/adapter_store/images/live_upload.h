// One open upload in memory. Internal to images/; Uploads owns it, checks and transports share it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/blob/store.h"
#include "lib/transfer/put_target.h"
#include "services/adapter_store/images/uploads.h"

namespace lorry::store {

// One run of the check, which any number of commits wait for. Guarded by its upload's mutex.
struct Uploads::Check {
  std::optional<absl::StatusOr<Version>> result;
  CondVar ended;
};

struct Uploads::Live {
  Live(const Upload& upload, Tick now) : record(upload), progress(now) {}

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

  const Upload record;  // as it was begun
  std::atomic<Tick> progress;
  std::atomic<uint64_t> unledgered = 0;  // bytes that arrived since the last ledger

  std::atomic<bool> opened = false;  // set under `io`

  // Held while the file is created, synced, checked or sealed; taken before `mutex`.
  Mutex io;
  std::shared_ptr<blob::Staging> staging LORRY_GUARDED_BY(io);
  std::shared_ptr<const blob::Mapping> sealed LORRY_GUARDED_BY(io);  // then `target` is null

  Mutex mutex;
  std::shared_ptr<transfer::PutTarget> target LORRY_GUARDED_BY(mutex);
  std::shared_ptr<Check> check LORRY_GUARDED_BY(mutex);  // the one that runs
};

}  // namespace lorry::store
