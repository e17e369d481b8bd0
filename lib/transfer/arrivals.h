// Which bytes of an image are there while it is still coming.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {

// An image that is served as far as it has come. Thread-safe.
class ComingBytes {
 public:
  virtual ~ComingBytes() = default;
  // Whether `range` is there, from where it does not change any more; a status where it never will
  // be.
  virtual absl::StatusOr<bool> Has(const Range& range) const = 0;
  // Whether whoever sends them may rest for minutes, so that a reader who waits that long is not idle.
  virtual bool MayRest() const { return false; }
};

// Those that a relay fetches.
class Arrivals final : public ComingBytes {
 public:
  // `range` is verified and in place.
  void Add(const Range& range) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    // Beyond its limit of pieces the set refuses: those bytes then wait for the end.
    there_.Add(range).IgnoreError();
  }
  // OK: all of it is there. Else nothing more comes, for this reason. The first end counts.
  void End(absl::Status how) LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = true;
    how_ = std::move(how);
  }

  absl::StatusOr<bool> Has(const Range& range) const override LORRY_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (ended_ && how_.ok()) return true;
    if (there_.Contains(range)) return true;
    if (ended_) return how_;
    return false;
  }

 private:
  mutable Mutex mutex_;
  RangeSet there_ LORRY_GUARDED_BY(mutex_);
  bool ended_ LORRY_GUARDED_BY(mutex_) = false;
  absl::Status how_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::transfer
