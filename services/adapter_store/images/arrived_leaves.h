// The checksums of an upload's leaves as they were proven on arrival, so that a commit gives a
// digest only to the bytes that were sent: what memory or disk has changed since is found out.
//
// A leaf that came in one piece has the checksum that its sender claimed and that was verified; one
// that came in several is hashed when the last of them is in place. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "lib/base/mutex.h"
#include "lib/transfer/checksum.h"
#include "lib/transfer/ranges.h"

namespace lorry::store {

class ArrivedLeaves {
 public:
  explicit ArrivedLeaves(uint64_t image_bytes);

  // `received` came in an earlier life of the store, which kept `kept` of it (see Kept; may be
  // empty). Before the first Add.
  void Resume(const std::vector<transfer::Range>& received, std::string_view kept)
      LORRY_EXCLUDES(mutex_);
  // The new bytes of `range` are in place in `image` and have the `checksums` of its pieces.
  void Add(const transfer::Range& range, std::span<const transfer::Checksum> checksums,
           std::span<const std::byte> image) LORRY_EXCLUDES(mutex_);

  // 16 bytes a leaf, zeroes for those that are not known.
  std::string Kept() const LORRY_EXCLUDES(mutex_);
  // DATA_LOSS RANGE_CORRUPT when a leaf among `leaves`, the whole image's, is not what arrived.
  absl::Status Compare(std::span<const transfer::Checksum> leaves) const LORRY_EXCLUDES(mutex_);

 private:
  // Counts `bytes` of `leaf`; true when it is whole now.
  bool Count(size_t leaf, uint64_t bytes) LORRY_EXCLUDES(mutex_);

  const uint64_t image_bytes_;
  mutable Mutex mutex_;
  std::vector<uint32_t> arrived_ LORRY_GUARDED_BY(mutex_);              // bytes of each leaf
  std::vector<transfer::Checksum> checksums_ LORRY_GUARDED_BY(mutex_);  // zeroes: not known
};

}  // namespace lorry::store
