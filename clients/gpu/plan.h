// Which block packs which bytes. The image is cut into tiles of 16 KiB on its own grid, a block each;
// the part of a tensor that lies in a tile is a segment. Made on the CPU, read by the kernels.
// Pure, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "clients/gpu/convert.h"
#include "clients/gpu/xxh3.h"

namespace lorry::gpu {

// What went wrong; empty where nothing did. Not absl::Status: this library is loaded into trainers
// and brings nothing along.
struct [[nodiscard]] Outcome {
  std::string error;
  bool ok() const { return error.empty(); }
};

// Enough loads in flight for a block, and a whole number of the hash's blocks.
inline constexpr unsigned kTileBytes = 16 << 10;
inline constexpr unsigned kTileBlocks = kTileBytes / kBlockBytes;
inline constexpr uint64_t kLeafBytes = 1 << 20;  // as lib/peft/digest.h
// A hundred times the largest adapter; keeps every count below 2^32.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 40;

// A tensor as a matrix in device memory, and where its elements go, row by row.
struct Source {
  uint64_t address = 0;  // of the first element
  uint64_t rows = 1, columns = 0;
  int64_t row_stride = 0, column_stride = 1;  // in elements
  uint64_t begin = 0;                         // its first byte in the image
  Format from = Format::kF32, to = Format::kF32;

  uint64_t bytes() const { return rows * columns * BytesOf(to); }
};

struct Segment {
  uint64_t address;  // of the tensor's first element
  uint64_t first;    // number of the segment's first element in the tensor
  uint64_t columns;
  int64_t row_stride, column_stride;
  uint32_t count;  // elements
  uint16_t at;     // its first byte in the tile
  Format from, to;
};

struct Tile {
  uint32_t index;           // begins at byte index * kTileBytes of the image
  uint32_t segment, count;  // its segments, which need not cover it
};

// What a block finds out about a segment, of the values as they are in the image.
struct Partial {
  double sum_squares;
  uint32_t largest;  // magnitude
  uint32_t unused;
};

// As ValueStats of lib/peft/values.h.
struct TensorStats {
  bool finite = true, zero = true;
  double sum_squares = 0;
};

struct Plan {
  uint64_t image_bytes = 0;
  std::vector<Segment> segments;
  std::vector<uint32_t> source_of;  // of each segment, the number of its source
  std::vector<Tile> tiles;          // only those that have segments
  // Numbers of the leaves whose every byte is packed: what is hashed. The first is none of them, as
  // the image's header lies there.
  std::vector<uint32_t> leaves;
};

// `sources` in the order of their bytes, which do not overlap.
Outcome MakePlan(std::span<const Source> sources, uint64_t image_bytes, Plan& plan);

// One for each source. The sums are added in the order of the segments, so that they are the same
// each time.
std::vector<TensorStats> StatsOf(const Plan& plan, std::span<const Source> sources,
                                 std::span<const Partial> partials);

LORRY_HD constexpr uint64_t LeafLength(uint64_t leaf, uint64_t image_bytes) {
  const uint64_t left = image_bytes - leaf * kLeafBytes;
  return left < kLeafBytes ? left : kLeafBytes;
}

// Where everything lies in one piece of device memory, in bytes from its begin.
struct Layout {
  explicit Layout(const Plan& plan);
  uint64_t image = 0;  // whole tiles
  uint64_t sums;       // of each block of the image, a word for each lane
  uint64_t tables;     // segments, tiles, leaves: what is uploaded
  uint64_t tiles, leaves;
  uint64_t results;  // partials, hashes: what is downloaded
  uint64_t hashes;
  uint64_t end;
};

}  // namespace lorry::gpu
