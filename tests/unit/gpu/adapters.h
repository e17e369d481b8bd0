// Adapters for the tests of clients/gpu: tensors somewhere in memory, strided or not, and the image
// that they must become, computed element by element in another way.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "clients/gpu/plan.h"
#include "lib/base/prng.h"

namespace lorry::gpu {

// The exact value, the slow way.
inline double ValueOf(Format format, uint32_t bits) {
  const int digits = format == Format::kF32 ? 23 : format == Format::kF16 ? 10 : 7;
  const int width = format == Format::kF16 ? 5 : 8;
  const int bias = (1 << (width - 1)) - 1;
  const int exponent = static_cast<int>(bits >> digits) & ((1 << width) - 1);
  const double mantissa = bits & ((1u << digits) - 1);
  const double sign = bits >> (digits + width) ? -1 : 1;
  if (exponent == (1 << width) - 1) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - digits);
  return sign * std::ldexp(mantissa + std::ldexp(1, digits), exponent - bias - digits);
}

// The bf16 nearest to `value`, of two that are equally near the even one, by looking at both
// neighbours.
inline uint32_t NearestBf16(double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fc0 | sign;
  uint32_t below = 0, above = 0x7f80;  // magnitudes order like their bits
  while (above - below > 1) {
    const uint32_t middle = (above + below) / 2;
    (ValueOf(Format::kBf16, middle) <= magnitude ? below : above) = middle;
  }
  // Infinity stands where the next value would be.
  const double next = above == 0x7f80 ? std::ldexp(1, 128) : ValueOf(Format::kBf16, above);
  const double down = magnitude - ValueOf(Format::kBf16, below), up = next - magnitude;
  if (std::isinf(magnitude)) return sign | 0x7f80;
  return sign | (down < up || (down == up && below % 2 == 0) ? below : above);
}

struct Adapter {
  std::vector<std::vector<unsigned char>> memory;  // of each tensor
  std::vector<Source> sources;
  uint64_t image_bytes = 0;
};

inline uint32_t ElementOf(const Source& source, uint64_t row, uint64_t column) {
  const int64_t element = static_cast<int64_t>(row) * source.row_stride +
                          static_cast<int64_t>(column) * source.column_stride;
  const unsigned item = BytesOf(source.from);
  uint32_t bits = 0;
  std::memcpy(&bits,
              reinterpret_cast<const unsigned char*>(source.address) + element * int64_t{item},
              item);
  return bits;
}

// The image as it must become; bytes that no tensor has are 0.
inline std::vector<unsigned char> Expected(const Adapter& adapter) {
  std::vector<unsigned char> image(adapter.image_bytes);
  for (const Source& source : adapter.sources) {
    uint64_t at = source.begin;
    for (uint64_t row = 0; row < source.rows; ++row) {
      for (uint64_t column = 0; column < source.columns; ++column, at += BytesOf(source.to)) {
        uint32_t bits = ElementOf(source, row, column);
        if (source.from != source.to) bits = NearestBf16(ValueOf(source.from, bits));
        std::memcpy(&image[at], &bits, BytesOf(source.to));
      }
    }
  }
  return image;
}

// Appends a tensor with random finite values, `padding` elements longer a row than it needs, and
// `step` elements from column to column. `skew` elements lie before it.
inline void AddTensor(Adapter& adapter, Prng& prng, Format from, Format to, uint64_t rows,
                      uint64_t columns, uint64_t step = 1, uint64_t padding = 0,
                      uint64_t skew = 0) {
  const unsigned item = BytesOf(from);
  const uint64_t row_stride = columns * step + padding;
  std::vector<unsigned char>& memory =
      adapter.memory.emplace_back((skew + rows * row_stride + 1) * item);
  for (uint64_t i = 0; i < memory.size() / item; ++i) {
    uint32_t bits = static_cast<uint32_t>(prng.Next());
    if (from != Format::kF32) bits &= 0xffff;
    // Not so large that bf16 could not hold it, nor a sum of squares.
    if (MagnitudeOf(from, bits) >= (from == Format::kF32   ? 0x5e000000u
                                    : from == Format::kF16 ? 0x7c00u
                                                           : 0x5e00u))
      bits = prng.Chance(500) ? 1 : 0;  // a subnormal
    std::memcpy(&memory[i * item], &bits, item);
  }
  const uint64_t begin = (adapter.image_bytes + BytesOf(to) - 1) / BytesOf(to) * BytesOf(to);
  adapter.sources.push_back({.address = reinterpret_cast<uint64_t>(memory.data() + skew * item),
                             .rows = rows,
                             .columns = columns,
                             .row_stride = static_cast<int64_t>(row_stride),
                             .column_stride = static_cast<int64_t>(step),
                             .begin = begin,
                             .from = from,
                             .to = to});
  adapter.image_bytes = begin + adapter.sources.back().bytes();
}

}  // namespace lorry::gpu
