#include "services/adapter_store/images/arrived_leaves.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::store {
namespace {

using transfer::Checksum;
using transfer::kLeafBytes;
using transfer::LeafRange;
using transfer::Range;

bool IsKnown(const Checksum& checksum) { return checksum != Checksum(); }

// Calls `visit(leaf, bytes)` for each leaf that `range` touches, in order.
template <typename Visit>
void ForEachLeaf(const Range& range, Visit visit) {
  for (uint64_t at = range.offset; at < range.end();) {
    const uint64_t leaf = at / kLeafBytes;
    const uint64_t end = std::min(range.end(), (leaf + 1) * kLeafBytes);
    visit(static_cast<size_t>(leaf), end - at);
    at = end;
  }
}

}  // namespace

ArrivedLeaves::ArrivedLeaves(uint64_t image_bytes)
    : image_bytes_(image_bytes),
      arrived_(transfer::LeafCount(image_bytes)),
      checksums_(transfer::LeafCount(image_bytes)) {}

bool ArrivedLeaves::Count(size_t leaf, uint64_t bytes) {
  MutexLock lock(mutex_);
  arrived_[leaf] += static_cast<uint32_t>(bytes);
  return arrived_[leaf] == LeafRange(leaf, image_bytes_).length;
}

void ArrivedLeaves::Resume(const std::vector<Range>& received, std::string_view kept) {
  for (const Range& range : received) {
    ForEachLeaf(range, [&](size_t leaf, uint64_t bytes) {
      const bool is_whole = Count(leaf, bytes);
      if (!is_whole || (leaf + 1) * sizeof(Checksum) > kept.size()) return;
      MutexLock lock(mutex_);
      std::memcpy(&checksums_[leaf], kept.data() + leaf * sizeof(Checksum), sizeof(Checksum));
    });
  }
}

void ArrivedLeaves::Add(const Range& range, std::span<const Checksum> checksums,
                        std::span<const std::byte> image) {
  size_t piece = 0;
  ForEachLeaf(range, [&](size_t leaf, uint64_t bytes) {
    const Checksum& claimed = checksums[piece++];
    if (!Count(leaf, bytes)) return;
    const Range whole = LeafRange(leaf, image_bytes_);
    // Hashed outside of the lock: other threads are adding other leaves.
    const Checksum checksum =
        bytes == whole.length
            ? claimed
            : transfer::PieceChecksums(whole.offset, image.subspan(whole.offset, whole.length))
                  .front();
    MutexLock lock(mutex_);
    checksums_[leaf] = checksum;
  });
}

std::string ArrivedLeaves::Kept() const {
  MutexLock lock(mutex_);
  return {reinterpret_cast<const char*>(checksums_.data()), checksums_.size() * sizeof(Checksum)};
}

absl::Status ArrivedLeaves::Compare(std::span<const Checksum> leaves) const {
  MutexLock lock(mutex_);
  for (size_t leaf = 0; leaf < checksums_.size(); ++leaf) {
    if (!IsKnown(checksums_[leaf]) || leaves[leaf] == checksums_[leaf]) continue;
    const Range range = LeafRange(leaf, image_bytes_);
    return Error(absl::StatusCode::kDataLoss, "RANGE_CORRUPT",
                 absl::StrCat("the bytes of range ", transfer::ToString(range),
                              " are no longer those that arrived: look at the store's disk and "
                              "memory, and begin the upload again"));
  }
  return absl::OkStatus();
}

}  // namespace lorry::store
