// Byte ranges of an image, and sets of them: what was received, what is missing, what is in flight.
//
// Plain values without synchronisation. Offsets and lengths are bytes from the image's first byte.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace lorry::transfer {

// An image never exceeds this: far above any adapter (the largest known is 46 GB a rank), far below
// overflow.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 44;

struct Range {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint64_t end() const { return offset + length; }
  auto operator<=>(const Range&) const = default;
};

// "[4096, +1048576)".
std::string ToString(const Range& range);

// OK when `range` is not empty, does not overflow and ends within `image_bytes`; else OUT_OF_RANGE
// BAD_RANGE.
absl::Status CheckRange(const Range& range, uint64_t image_bytes);

// Cuts `ranges` at multiples of `range_bytes`, so that repeated cuts of one image give the same
// pieces.
std::vector<Range> CutRanges(std::span<const Range> ranges, uint64_t range_bytes);

// A set of bytes, kept as disjoint ranges that do not touch.
class RangeSet {
 public:
  // 2^20 pieces. The worst order that an honest sender has is a rank's columns of every row: each row
  // is a piece until the other ranks' columns join them, 98,304 for large adapters and some hundred
  // thousand with many experts. A hostile one meets the limit at some 64 MB of memory.
  static constexpr size_t kPiecesMax = size_t{1} << 20;

  RangeSet() = default;
  explicit RangeSet(std::span<const Range> ranges);  // beyond the limit they are left out

  // RESOURCE_EXHAUSTED TOO_MANY_RANGES, changing nothing, when the set would have more than
  // kPiecesMax.
  absl::Status Add(const Range& range);
  // Removing may cut one piece into two; the limit is Add's alone, since a removal follows an Add.
  void Remove(const Range& range);

  bool Contains(const Range& range) const;
  bool Overlaps(const Range& range) const;
  // The parts of `within` that are, and that are not, in the set; in order.
  std::vector<Range> Common(const Range& within) const;
  std::vector<Range> Missing(const Range& within) const;

  std::vector<Range> Ranges() const;
  uint64_t bytes() const { return bytes_; }
  size_t pieces() const { return ends_.size(); }
  bool empty() const { return bytes_ == 0; }
  bool operator==(const RangeSet&) const = default;

 private:
  std::map<uint64_t, uint64_t> ends_;  // offset → end
  uint64_t bytes_ = 0;
};

}  // namespace lorry::transfer
