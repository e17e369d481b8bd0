#include "lib/transfer/ranges.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"

namespace lorry::transfer {

std::string ToString(const Range& range) {
  return absl::StrCat("[", range.offset, ", +", range.length, ")");
}

absl::Status CheckRange(const Range& range, uint64_t image_bytes) {
  // Written so that no sum can overflow: offset and length are whatever a peer sent.
  if (range.length == 0 || range.offset > image_bytes ||
      range.length > image_bytes - range.offset) {
    return Error(absl::StatusCode::kOutOfRange, "BAD_RANGE",
                 absl::StrCat("range ", ToString(range), " does not lie in an image of ",
                              image_bytes, " bytes"));
  }
  return absl::OkStatus();
}

std::vector<Range> CutRanges(std::span<const Range> ranges, uint64_t range_bytes) {
  LORRY_CHECK(range_bytes > 0);
  std::vector<Range> cut;
  for (const Range& range : ranges) {
    for (uint64_t at = range.offset; at < range.end();) {
      const uint64_t end = std::min(range.end(), (at / range_bytes + 1) * range_bytes);
      cut.push_back({at, end - at});
      at = end;
    }
  }
  return cut;
}

RangeSet::RangeSet(std::span<const Range> ranges) {
  for (const Range& range : ranges) Add(range).IgnoreError();
}

absl::Status RangeSet::Add(const Range& range) {
  LORRY_CHECK(CheckRange(range, kImageBytesMax).ok());
  uint64_t begin = range.offset, end = range.end();
  // First piece that ends at or after `begin`: it may touch.
  auto first = ends_.upper_bound(begin);
  if (first != ends_.begin() && std::prev(first)->second >= begin) --first;
  auto last = first;
  uint64_t absorbed = 0;
  for (; last != ends_.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
    absorbed += last->second - last->first;
  }
  if (first == last && ends_.size() >= kPiecesMax) {
    return Error(absl::StatusCode::kResourceExhausted, "TOO_MANY_RANGES",
                 "the ranges received so far lie too scattered; send them in order");
  }
  ends_.erase(first, last);
  ends_[begin] = end;
  bytes_ += end - begin - absorbed;
  return absl::OkStatus();
}

void RangeSet::Remove(const Range& range) {
  for (const Range& common : Common(range)) {
    auto piece = std::prev(ends_.upper_bound(common.offset));
    const uint64_t begin = piece->first, end = piece->second;
    ends_.erase(piece);
    if (begin < common.offset) ends_[begin] = common.offset;
    if (common.end() < end) ends_[common.end()] = end;
    bytes_ -= common.length;
  }
}

bool RangeSet::Contains(const Range& range) const {
  auto after = ends_.upper_bound(range.offset);
  return after != ends_.begin() && std::prev(after)->second >= range.end();
}

bool RangeSet::Overlaps(const Range& range) const { return !Common(range).empty(); }

std::vector<Range> RangeSet::Common(const Range& within) const {
  std::vector<Range> common;
  auto piece = ends_.upper_bound(within.offset);
  if (piece != ends_.begin()) --piece;
  for (; piece != ends_.end() && piece->first < within.end(); ++piece) {
    const uint64_t begin = std::max(piece->first, within.offset);
    const uint64_t end = std::min(piece->second, within.end());
    if (begin < end) common.push_back({begin, end - begin});
  }
  return common;
}

std::vector<Range> RangeSet::Missing(const Range& within) const {
  std::vector<Range> missing;
  uint64_t at = within.offset;
  for (const Range& common : Common(within)) {
    if (at < common.offset) missing.push_back({at, common.offset - at});
    at = common.end();
  }
  if (at < within.end()) missing.push_back({at, within.end() - at});
  return missing;
}

std::vector<Range> RangeSet::Ranges() const {
  std::vector<Range> ranges;
  ranges.reserve(ends_.size());
  for (const auto& [offset, end] : ends_) ranges.push_back({offset, end - offset});
  return ranges;
}

}  // namespace lorry::transfer
