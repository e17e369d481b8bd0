// The two kernels, as functions of a block: PackTile is what the training stream waits for,
// FinishLeaf runs beside it. Bytes and hashes are the same on GPU and CPU; so are sums where
// products and sums are not fused (nvcc --fmad=false). Each block writes memory that no other
// writes.
#pragma once

#include <cstdint>

#include "clients/gpu/plan.h"

namespace lorry::gpu {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kFolds = 16;        // threads that add up what kThreads found
inline constexpr unsigned kLeafThreads = 32;  // of a block of FinishLeaf; kLanes of them work

// Device pointers; see Layout.
struct View {
  unsigned char* image;
  uint64_t* sums;
  const Segment* segments;
  const Tile* tiles;
  const uint32_t* leaves;
  Partial* partials;
  unsigned char* hashes;
  uint64_t image_bytes;

  static View Of(const Plan& plan, unsigned char* memory) {
    const Layout layout(plan);
    return {.image = memory + layout.image,
            .sums = reinterpret_cast<uint64_t*>(memory + layout.sums),
            .segments = reinterpret_cast<const Segment*>(memory + layout.tables),
            .tiles = reinterpret_cast<const Tile*>(memory + layout.tiles),
            .leaves = reinterpret_cast<const uint32_t*>(memory + layout.leaves),
            .partials = reinterpret_cast<Partial*>(memory + layout.results),
            .hashes = memory + layout.hashes,
            .image_bytes = plan.image_bytes};
  }
};

// What the threads of a block share.
struct TileMemory {
  alignas(16) unsigned char bytes[kTileBytes];
  uint64_t secret[kSecretWords];
  uint64_t half_sums[kThreads];
  double folded_sums[kFolds];
  float sums[kThreads];
  uint32_t largest[kThreads], folded_largest[kFolds];
};

// One thread's share of a segment's values.
struct Found {
  float sum_squares = 0;
  uint32_t largest = 0;
};

template <Format kTo>
LORRY_HD inline void Note(uint32_t bits, Found& found) {
  const float value = FloatOf<kTo>(bits);
  const uint32_t magnitude = MagnitudeOf(kTo, bits);
  found.sum_squares += value * value;
  found.largest = magnitude > found.largest ? magnitude : found.largest;
}

// Elements that lie one after the other, aligned: in words of eight bytes of the image, a few loads
// of each thread at a time. Returns how many elements that were.
template <Format kFrom, Format kTo>
LORRY_HD inline uint32_t GatherWords(const Segment& segment, unsigned thread, unsigned char* out,
                                     Found& found) {
  constexpr unsigned kItems = 8 / BytesOf(kTo), kLoads = kItems * BytesOf(kFrom) / 8, kDepth = 4;
  constexpr unsigned kFromBits = 8 * BytesOf(kFrom), kToBits = 8 * BytesOf(kTo);
  const uint64_t from = segment.address + segment.first * BytesOf(kFrom);
  const bool contiguous =
      segment.column_stride == 1 && segment.first + segment.count <= segment.columns;
  if (!contiguous || from % 8 != 0 || segment.at % 8 != 0) return 0;
  const auto* in = reinterpret_cast<const uint64_t*>(from);
  auto* words = reinterpret_cast<uint64_t*>(out);
  const uint32_t count = segment.count / kItems;
  for (uint32_t base = thread; base < count; base += kDepth * kThreads) {
    uint64_t loaded[kDepth][kLoads];
    for (unsigned d = 0; d < kDepth; ++d) {
      const uint32_t word = base + d * kThreads;
      for (unsigned l = 0; l < kLoads; ++l) loaded[d][l] = word < count ? in[word * kLoads + l] : 0;
    }
    for (unsigned d = 0; d < kDepth; ++d) {
      const uint32_t word = base + d * kThreads;
      if (word >= count) continue;
      uint64_t packed = 0;
      for (unsigned i = 0; i < kItems; ++i) {
        const uint64_t source = loaded[d][i * kFromBits / 64] >> (i * kFromBits % 64);
        const uint32_t bits =
            Cast<kFrom, kTo>(static_cast<uint32_t>(source & (~uint64_t{0} >> (64 - kFromBits))));
        Note<kTo>(bits, found);
        packed |= uint64_t{bits} << (i * kToBits);
      }
      words[word] = packed;
    }
  }
  return count * kItems;
}

template <Format kFormat>
LORRY_HD inline uint32_t LoadElement(uint64_t address) {
  if constexpr (kFormat == Format::kF32) return *reinterpret_cast<const uint32_t*>(address);
  return *reinterpret_cast<const uint16_t*>(address);
}

template <Format kFrom, Format kTo>
LORRY_HD inline Found Gather(const Segment& segment, unsigned thread, unsigned char* tile) {
  Found found;
  unsigned char* out = tile + segment.at;
  const uint32_t done = GatherWords<kFrom, kTo>(segment, thread, out, found);
  for (uint32_t i = done + thread; i < segment.count; i += kThreads) {
    const uint64_t row = (segment.first + i) / segment.columns;
    const uint64_t column = (segment.first + i) % segment.columns;
    const int64_t element = static_cast<int64_t>(row) * segment.row_stride +
                            static_cast<int64_t>(column) * segment.column_stride;
    const uint64_t at = segment.address + static_cast<uint64_t>(element * int64_t{BytesOf(kFrom)});
    const uint32_t bits = Cast<kFrom, kTo>(LoadElement<kFrom>(at));
    Note<kTo>(bits, found);
    if constexpr (kTo == Format::kF32) {
      *reinterpret_cast<uint32_t*>(out + 4 * i) = bits;
    } else {
      *reinterpret_cast<uint16_t*>(out + 2 * i) = static_cast<uint16_t>(bits);
    }
  }
  return found;
}

LORRY_HD inline Found Gather(const Segment& segment, unsigned thread, unsigned char* tile) {
  constexpr Format kF32 = Format::kF32, kF16 = Format::kF16, kBf16 = Format::kBf16;
  if (segment.from == kF32 && segment.to == kF32) return Gather<kF32, kF32>(segment, thread, tile);
  if (segment.from == kF32) return Gather<kF32, kBf16>(segment, thread, tile);
  if (segment.from == kBf16) return Gather<kBf16, kBf16>(segment, thread, tile);
  if (segment.to == kF16) return Gather<kF16, kF16>(segment, thread, tile);
  return Gather<kF16, kBf16>(segment, thread, tile);
}

// Gathers a segment and adds up what its values are, always in the same order.
LORRY_HD inline void PackSegment(const Block& block, const Segment& segment, Partial& partial,
                                 TileMemory& shared) {
  block.Each([&](unsigned thread) {
    const Found found = Gather(segment, thread, shared.bytes);
    shared.sums[thread] = found.sum_squares;
    shared.largest[thread] = found.largest;
  });
  block.Each([&](unsigned thread) {
    if (thread >= kFolds) return;
    double sum = 0;
    uint32_t largest = 0;
    for (unsigned i = thread; i < kThreads; i += kFolds) {
      sum += static_cast<double>(shared.sums[i]);
      largest = shared.largest[i] > largest ? shared.largest[i] : largest;
    }
    shared.folded_sums[thread] = sum;
    shared.folded_largest[thread] = largest;
  });
  block.Each([&](unsigned thread) {
    if (thread != 0) return;
    Partial all = {.sum_squares = 0, .largest = 0, .unused = 0};
    for (unsigned i = 0; i < kFolds; ++i) {
      all.sum_squares += shared.folded_sums[i];
      all.largest = shared.folded_largest[i] > all.largest ? shared.folded_largest[i] : all.largest;
    }
    partial = all;
  });
}

// The sums of each of the tile's blocks. Two threads share a lane of a block, every second stripe
// each, so that neighbours read neighbouring words.
LORRY_HD inline void SumBlocks(const Block& block, const View& view, uint64_t first_block,
                               TileMemory& shared) {
  const auto* words = reinterpret_cast<const uint64_t*>(shared.bytes);
  block.Each([&](unsigned thread) {
    const unsigned lane = thread % kLanes, half = thread / kLanes % 2, within = thread / kLanes / 2;
    const uint64_t leaf_block = (first_block + within) % (kLeafBytes / kBlockBytes);
    const uint64_t length =
        LeafLength((first_block + within) * kBlockBytes / kLeafBytes, view.image_bytes);
    unsigned stripes = 0;  // none beyond the leaf's end
    if (leaf_block < MixedBlocks(length)) stripes = kBlockStripes;
    if (leaf_block == MixedBlocks(length)) stripes = LastStripes(length);
    uint64_t sum = 0;
    for (unsigned stripe = half; stripe < stripes; stripe += 2) {
      const uint64_t* at = words + within * (kBlockBytes / 8) + stripe * kLanes;
      sum += StripeTerm(at[lane], at[lane ^ 1], StripeKey(shared.secret, stripe, lane));
    }
    shared.half_sums[thread] = sum;
  });
  block.Each([&](unsigned thread) {
    const unsigned lane = thread % kLanes, within = thread / kLanes;
    if (within >= kTileBlocks) return;
    const unsigned halves = within * 2 * kLanes + lane;
    view.sums[(first_block + within) * kLanes + lane] =
        shared.half_sums[halves] + shared.half_sums[halves + kLanes];
  });
}
static_assert(kThreads == 2 * kLanes * kTileBlocks);

// The kernel of block `number` of as many as there are tiles; kThreads threads. Bytes of the image
// that no tensor has are rubbish, and nobody's.
LORRY_HD inline void PackTile(const Block& block, const View& view, unsigned number,
                              TileMemory& shared) {
  struct alignas(16) Words {
    uint64_t low, high;
  };
  const Tile tile = view.tiles[number];
  block.Each([&](unsigned thread) {
    if (thread < kSecretWords) shared.secret[thread] = SecretWord(thread);
  });
  for (uint32_t i = tile.segment; i < tile.segment + tile.count; ++i)
    PackSegment(block, view.segments[i], view.partials[i], shared);
  block.Each([&](unsigned thread) {
    auto* out = reinterpret_cast<Words*>(view.image + uint64_t{tile.index} * kTileBytes);
    for (unsigned i = thread; i < kTileBytes / 16; i += kThreads)
      out[i] = reinterpret_cast<const Words*>(shared.bytes)[i];
  });
  SumBlocks(block, view, uint64_t{tile.index} * kTileBlocks, shared);
}

struct LeafMemory {
  uint64_t secret[kSecretWords];
  uint64_t lanes[kLanes];
};

// One lane of a leaf, from the sums of its blocks.
LORRY_HD inline uint64_t FinishLane(const View& view, uint64_t leaf, unsigned lane,
                                    const uint64_t* secret) {
  // Loads that are under way at a time: the steps are short, and the way to memory is long.
  constexpr unsigned kAhead = 16;
  const uint64_t length = LeafLength(leaf, view.image_bytes), mixed = MixedBlocks(length);
  const uint64_t* sums = view.sums + leaf * (kLeafBytes / kBlockBytes) * kLanes + lane;
  uint64_t value = FirstLane(lane);
  for (uint64_t begin = 0; begin < mixed; begin += kAhead) {
    uint64_t loaded[kAhead];
    for (unsigned i = 0; i < kAhead; ++i)
      loaded[i] = begin + i < mixed ? sums[(begin + i) * kLanes] : 0;
    for (unsigned i = 0; i < kAhead; ++i)
      if (begin + i < mixed) value = MixLane(value + loaded[i], secret, lane);
  }
  value += sums[mixed * kLanes];
  // The last stripe begins wherever the leaf ends, so its words are read byte by byte.
  const unsigned char* last = view.image + leaf * kLeafBytes + length - kStripeBytes;
  uint64_t own = 0, other = 0;
  for (unsigned i = 0; i < 8; ++i) {
    own |= uint64_t{last[8 * lane + i]} << (8 * i);
    other |= uint64_t{last[8 * (lane ^ 1) + i]} << (8 * i);
  }
  return value + StripeTerm(own, other, LastKey(secret, lane));
}

// The kernel of block `number` of as many as there are leaves to hash; kLeafThreads threads.
LORRY_HD inline void FinishLeaf(const Block& block, const View& view, unsigned number,
                                LeafMemory& shared) {
  const uint64_t leaf = view.leaves[number];
  block.Each([&](unsigned thread) {
    if (thread < kSecretWords) shared.secret[thread] = SecretWord(thread);
  });
  block.Each([&](unsigned thread) {
    if (thread < kLanes) shared.lanes[thread] = FinishLane(view, leaf, thread, shared.secret);
  });
  block.Each([&](unsigned thread) {
    if (thread == 0)
      Digest(shared.lanes, shared.secret, LeafLength(leaf, view.image_bytes),
             view.hashes + 16 * number);
  });
}

}  // namespace lorry::gpu
