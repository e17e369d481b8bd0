// What an upload is written into: one object an upload, shared by all transports and connections of
// its ranks.
//
// Ranges arrive in any order, from anyone with a ticket. Bytes that have arrived are never written
// again: a range that touches such bytes is received beside them and compared, so that the same
// bytes are a no-op and other bytes end the upload (ABORTED RANGE_CONFLICT). Thread-safe; the
// transports call Begin and Finish, the store the rest.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/mutex.h"
#include "lib/transfer/arrivals.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/ranges.h"

namespace lorry::transfer {

class PutTarget final : public ComingBytes, public std::enable_shared_from_this<PutTarget> {
 public:
  struct Options {
    std::shared_ptr<void> owner;  // keeps `bytes` mapped; released with the last connection's use
    std::span<std::byte> bytes;   // the whole image
    RangeSet received;            // what earlier connections or lives of the store have already
    // After a range was verified and is in place: new bytes only, with the checksums of its pieces.
    // Runs on a transport's thread and must not block; a status other than OK ends the upload with
    // it. May be empty.
    std::function<absl::Status(const Range&, std::span<const Checksum>)> on_range;
    // In how many pieces lies what has arrived, after each range. Must neither block nor call the
    // target. A status other than OK refuses a range that makes them more, which stays missing. May
    // be empty.
    std::function<absl::Status(size_t)> on_pieces = {};
  };

  // Where one range is received. Destroying it unfinished leaves the range missing.
  class Slot {
   public:
    Slot(Slot&&) = default;
    Slot& operator=(Slot&&) = delete;
    ~Slot();
    std::span<std::byte> destination() const { return destination_; }
    const Range& range() const { return range_; }

   private:
    friend class PutTarget;
    Slot() = default;
    std::shared_ptr<PutTarget> target_;
    Range range_;
    std::span<std::byte> destination_;
    std::vector<std::byte> beside_;  // in use when the range touches bytes that are there already
  };

  // At most this many ranges are received beside the image at a time: 4 × 8 MiB for an upload.
  static constexpr int kBesideMax = 4;

  static std::shared_ptr<PutTarget> Create(Options options);

  uint64_t image_bytes() const { return options_.bytes.size(); }
  // The whole image, of which what it Has may be read: by others, while the rest is received.
  std::span<const std::byte> bytes() const { return options_.bytes; }
  // What has arrived, also once the upload ended; the status that ended it for the rest.
  absl::StatusOr<bool> Has(const Range& range) const override LORRY_EXCLUDES(mutex_);
  bool MayRest() const override { return true; }  // a trainer does; the upload has its own deadline

  // Reserves `range`. UNAVAILABLE RANGE_BUSY: another connection is receiving some of it (an
  // earlier one of the same sender, perhaps); try again in a moment. OUT_OF_RANGE BAD_RANGE; or the
  // status that ended the upload.
  absl::StatusOr<Slot> Begin(const Range& range) LORRY_EXCLUDES(mutex_);

  // The bytes are in the slot. Hashes them (27 GB/s), so not for a progress thread. DATA_LOSS
  // RANGE_CORRUPT when they do not have the `claimed` checksums: the range stays missing. ABORTED
  // RANGE_CONFLICT ends the upload.
  absl::Status Finish(Slot slot, std::span<const Checksum> claimed) LORRY_EXCLUDES(mutex_);

  // Ends the upload: from here every Begin and Finish answers `status` (expired, newer attempt,
  // committed). Slots may still be open; `idle` tells when none is and no byte can change any more.
  void End(absl::Status status) LORRY_EXCLUDES(mutex_);
  bool idle() const LORRY_EXCLUDES(mutex_);
  absl::Status ended() const LORRY_EXCLUDES(mutex_);  // what ended it; OK while it takes ranges

  RangeSet received() const LORRY_EXCLUDES(mutex_);
  std::vector<Range> missing() const LORRY_EXCLUDES(mutex_);
  // Of what is missing, what connections are receiving now.
  std::vector<Range> in_flight() const LORRY_EXCLUDES(mutex_);

 private:
  explicit PutTarget(Options options);
  absl::Status AddReceived(const Range& range) LORRY_REQUIRES(mutex_);
  absl::Status MergeBeside(const Slot& slot) LORRY_REQUIRES(mutex_);
  void Release(const Slot& slot) LORRY_EXCLUDES(mutex_);

  const Options options_;
  mutable Mutex mutex_;
  RangeSet received_ LORRY_GUARDED_BY(mutex_);
  RangeSet in_flight_ LORRY_GUARDED_BY(mutex_);
  int beside_ LORRY_GUARDED_BY(mutex_) = 0;
  int open_ LORRY_GUARDED_BY(mutex_) = 0;
  absl::Status ended_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::transfer
