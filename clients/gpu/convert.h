// The element formats of adapters, and what is asked of them: a cast to bf16, and whether a value is
// finite. On GPU and CPU alike, bit by bit. Pure, any thread.
#pragma once

#include <bit>
#include <cstdint>

#include "clients/gpu/block.h"

namespace lorry::gpu {

enum class Format : uint8_t { kF32 = 0, kF16 = 1, kBf16 = 2 };

LORRY_HD constexpr unsigned BytesOf(Format format) { return format == Format::kF32 ? 4 : 2; }

// The sign's bit is out, and magnitudes order like their bits: NaN and infinity come last.
LORRY_HD constexpr uint32_t MagnitudeOf(Format format, uint32_t bits) {
  return bits & (format == Format::kF32 ? 0x7fffffffu : 0x7fffu);
}
// The least magnitude that is not finite.
LORRY_HD constexpr uint32_t NotFinite(Format format) {
  if (format == Format::kF32) return 0x7f800000;
  return format == Format::kF16 ? 0x7c00 : 0x7f80;
}

// Exact: every value of the three is one of fp32.
template <Format kFormat>
LORRY_HD inline float FloatOf(uint32_t bits) {
  if constexpr (kFormat == Format::kF32) return std::bit_cast<float>(bits);
  if constexpr (kFormat == Format::kBf16) return std::bit_cast<float>(bits << 16);
  const uint32_t sign = (bits & 0x8000) << 16, exponent = (bits >> 10) & 31,
                 mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormals, which are whole multiples of 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t biased = exponent == 31 ? 0xff : exponent + 112;
  return std::bit_cast<float>(sign | (biased << 23) | (mantissa << 13));
}

// Round to nearest, ties to even; what rounds beyond the largest bf16 is infinite. A NaN stays one.
LORRY_HD inline uint32_t Bf16Of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Same format: the bits as they are. Else kTo is kBf16 (CanCast).
template <Format kFrom, Format kTo>
LORRY_HD inline uint32_t Cast(uint32_t bits) {
  if constexpr (kFrom == kTo) return bits;
  return Bf16Of(FloatOf<kFrom>(bits));
}
constexpr bool CanCast(Format from, Format to) { return from == to || to == Format::kBf16; }

}  // namespace lorry::gpu
