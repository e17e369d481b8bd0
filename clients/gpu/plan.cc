#include "clients/gpu/plan.h"

#include <algorithm>

namespace lorry::gpu {
namespace {

Outcome Refuse(size_t index, const char* why) {
  return {"tensor " + std::to_string(index) + ": " + why};
}

Outcome Check(std::span<const Source> sources, uint64_t image_bytes) {
  if (image_bytes > kImageBytesMax) return {"the image is larger than 1 TiB"};
  uint64_t end = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    if (source.from > Format::kBf16 || source.to > Format::kBf16)
      return Refuse(i, "unknown format");
    if (!CanCast(source.from, source.to)) return Refuse(i, "casts are to bf16 only");
    uint64_t count = 0, bytes = 0, past = 0;
    if (__builtin_mul_overflow(source.rows, source.columns, &count) ||
        __builtin_mul_overflow(count, uint64_t{BytesOf(source.to)}, &bytes) ||
        __builtin_add_overflow(source.begin, bytes, &past) || past > image_bytes) {
      return Refuse(i, "ends beyond the image");
    }
    if (source.begin < end) return Refuse(i, "begins before the one before it ends");
    if (source.begin % BytesOf(source.to) != 0) return Refuse(i, "is not aligned in the image");
    if (source.address % BytesOf(source.from) != 0) return Refuse(i, "is not aligned in memory");
    if (count > 0 && source.address == 0) return Refuse(i, "has no address");
    end = past;
  }
  return {};
}

// A single row where the elements lie at one distance from each other, so that the kernels know what
// is contiguous by its strides.
Source Flattened(Source source) {
  const bool one_distance =
      source.rows == 1 || source.columns == 1 ||
      source.row_stride == source.column_stride * static_cast<int64_t>(source.columns);
  if (!one_distance) return source;
  if (source.columns == 1) source.column_stride = source.row_stride;
  source.columns *= source.rows;
  source.rows = 1;
  return source;
}

void AddSegments(const Source& source, uint32_t number, Plan& plan) {
  const uint64_t item = BytesOf(source.to), end = source.begin + source.bytes();
  for (uint64_t at = source.begin; at < end;) {
    const auto index = static_cast<uint32_t>(at / kTileBytes);
    const uint64_t stop = std::min(end, (index + uint64_t{1}) * kTileBytes);
    if (plan.tiles.empty() || plan.tiles.back().index != index) {
      plan.tiles.push_back({index, static_cast<uint32_t>(plan.segments.size()), 0});
    }
    ++plan.tiles.back().count;
    plan.segments.push_back({.address = source.address,
                             .first = (at - source.begin) / item,
                             .columns = source.columns,
                             .row_stride = source.row_stride,
                             .column_stride = source.column_stride,
                             .count = static_cast<uint32_t>((stop - at) / item),
                             .at = static_cast<uint16_t>(at % kTileBytes),
                             .from = source.from,
                             .to = source.to});
    plan.source_of.push_back(number);
    at = stop;
  }
}

}  // namespace

Outcome MakePlan(std::span<const Source> sources, uint64_t image_bytes, Plan& plan) {
  if (Outcome checked = Check(sources, image_bytes); !checked.ok()) return checked;
  plan = {.image_bytes = image_bytes};
  std::vector<uint64_t> packed((image_bytes + kLeafBytes - 1) / kLeafBytes);  // bytes of each leaf
  for (size_t i = 0; i < sources.size(); ++i) {
    AddSegments(Flattened(sources[i]), static_cast<uint32_t>(i), plan);
  }
  for (const Tile& tile : plan.tiles) {
    for (const Segment& s : std::span(plan.segments).subspan(tile.segment, tile.count)) {
      packed[uint64_t{tile.index} * kTileBytes / kLeafBytes] += uint64_t{s.count} * BytesOf(s.to);
    }
  }
  for (size_t leaf = 0; leaf < packed.size(); ++leaf) {
    const uint64_t length = LeafLength(leaf, image_bytes);
    if (packed[leaf] == length && length >= kHashedBytesMin)
      plan.leaves.push_back(static_cast<uint32_t>(leaf));
  }
  return {};
}

std::vector<TensorStats> StatsOf(const Plan& plan, std::span<const Source> sources,
                                 std::span<const Partial> partials) {
  std::vector<TensorStats> stats(sources.size());
  for (size_t i = 0; i < partials.size(); ++i) {
    TensorStats& of = stats[plan.source_of[i]];
    of.finite &= partials[i].largest < NotFinite(plan.segments[i].to);
    of.zero &= partials[i].largest == 0;
    of.sum_squares += partials[i].sum_squares;
  }
  return stats;
}

Layout::Layout(const Plan& plan) {
  uint64_t at = 0;
  const auto take = [&at](uint64_t bytes) {
    const uint64_t begin = at;
    at += (bytes + 255) / 256 * 256;
    return begin;
  };
  const uint64_t image_tiles = (plan.image_bytes + kTileBytes - 1) / kTileBytes;
  image = take(image_tiles * kTileBytes);
  sums = take(image_tiles * kTileBlocks * kLanes * sizeof(uint64_t));
  tables = take(plan.segments.size() * sizeof(Segment));
  tiles = take(plan.tiles.size() * sizeof(Tile));
  leaves = take(plan.leaves.size() * sizeof(uint32_t));
  results = at;
  hashes = results + plan.segments.size() * sizeof(Partial);
  end = hashes + plan.leaves.size() * 16;
}

}  // namespace lorry::gpu
