#include "lib/peft/values.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

// Blocks are copied to an aligned buffer that stays in the first-level cache; a short one is filled
// up with zeros, which change no result.
constexpr size_t kBlockBytes = 4096;
// Independent sums let the compiler use whole vectors; adding floats in another order is not its to
// decide.
constexpr size_t kLanes = 16;

struct Bf16 {
  using Bits = uint16_t;
  static constexpr Bits kMagnitude = 0x7fff, kNotFinite = 0x7f80;
  static float Value(Bits bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

struct F16 {
  using Bits = uint16_t;
  static constexpr Bits kMagnitude = 0x7fff, kNotFinite = 0x7c00;
  // The magnitude; only squares are taken of it. No branch, so that it becomes vector code: a
  // subnormal gets the exponent of the smallest normal, which is then subtracted again.
  static float Value(Bits bits) {
    const uint32_t magnitude = bits & kMagnitude;
    const uint32_t if_subnormal = magnitude < 0x400 ? ~0u : 0u;
    const float biased =
        std::bit_cast<float>((magnitude << 13) + (112u << 23) + (if_subnormal & (1u << 23)));
    return biased - std::bit_cast<float>(if_subnormal & std::bit_cast<uint32_t>(0x1p-14f));
  }
};

struct F32 {
  using Bits = uint32_t;
  static constexpr Bits kMagnitude = 0x7fffffff, kNotFinite = 0x7f800000;
  static float Value(Bits bits) { return std::bit_cast<float>(bits); }
};

// Magnitudes order like their bits, so the largest of them tells NaN, infinity and all-zero at
// once.
template <typename Format>
[[gnu::always_inline]] inline void ScanBlock(const std::byte* bytes, ValueStats& stats) {
  using Bits = typename Format::Bits;
  using Signed = std::make_signed_t<Bits>;  // SSE2 has a maximum of signed 16-bit lanes only
  constexpr size_t kCount = kBlockBytes / sizeof(Bits);
  alignas(64) Bits block[kCount];
  std::memcpy(block, bytes, kBlockBytes);
  Signed largest = 0;
  for (size_t i = 0; i < kCount; ++i) {
    largest = std::max(largest, static_cast<Signed>(block[i] & Format::kMagnitude));
  }
  alignas(64) std::array<float, kLanes> sums{};
  for (size_t i = 0; i < kCount; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float value = Format::Value(block[i + lane]);
      sums[lane] += value * value;
    }
  }
  stats.finite &= static_cast<Bits>(largest) < Format::kNotFinite;
  stats.zero &= largest == 0;
  for (const float sum : sums) stats.sum_squares += sum;
}

template <typename Format>
[[gnu::always_inline]] inline ValueStats Scan(std::span<const std::byte> bytes) {
  ValueStats stats;
  for (; bytes.size() >= kBlockBytes; bytes = bytes.subspan(kBlockBytes))
    ScanBlock<Format>(bytes.data(), stats);
  if (!bytes.empty()) {
    std::array<std::byte, kBlockBytes> last{};
    std::memcpy(last.data(), bytes.data(), bytes.size());
    ScanBlock<Format>(last.data(), stats);
  }
  return stats;
}

// One more of each for processors with wider vectors; the sums are the same, bit by bit.
// (Sanitizers are not ready yet when the loader chooses.)
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LORRY_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define LORRY_WIDE
#endif
LORRY_WIDE ValueStats ScanBf16(std::span<const std::byte> bytes) { return Scan<Bf16>(bytes); }
LORRY_WIDE ValueStats ScanF16(std::span<const std::byte> bytes) { return Scan<F16>(bytes); }
LORRY_WIDE ValueStats ScanF32(std::span<const std::byte> bytes) { return Scan<F32>(bytes); }

absl::Status NormExceeded(std::string_view what, double norm, double limit) {
  return Refuse("NORM_EXCEEDED",
                absl::StrCat(Quoted(what), " has the norm ", norm, ", the policy allows ", limit,
                             "; look for a diverged step, or raise the policy's limit"));
}

}  // namespace

ValueStats ScanValues(Dtype dtype, std::span<const std::byte> bytes) {
  LORRY_CHECK(IsAdapterDtype(dtype) && bytes.size() % ElementBytes(dtype) == 0);
  if (dtype == Dtype::kF32) return ScanF32(bytes);
  return dtype == Dtype::kF16 ? ScanF16(bytes) : ScanBf16(bytes);
}

ValueScanner::ValueScanner(const ImageHeader& header)
    : header_(header), stats_(header.tensors.size()) {}

void ValueScanner::Add(std::span<const std::byte> bytes) {
  if (offset_ < header_.data_begin) {
    const size_t skipped = std::min<uint64_t>(bytes.size(), header_.data_begin - offset_);
    offset_ += skipped;
    bytes = bytes.subspan(skipped);
  }
  while (!bytes.empty() && tensor_ < header_.tensors.size()) {
    const uint64_t left = header_.tensors[tensor_].end - offset_;
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), left));
    AddToTensor(part);
    offset_ += part.size();
    bytes = bytes.subspan(part.size());
    if (part.size() == left) ++tensor_;
  }
}

void ValueScanner::AddToTensor(std::span<const std::byte> bytes) {
  const Dtype dtype = header_.tensors[tensor_].dtype;
  if (!IsAdapterDtype(dtype)) return;
  const size_t element = ElementBytes(dtype);
  if (!partial_.empty()) {
    const auto rest = bytes.first(std::min(bytes.size(), element - partial_.size()));
    partial_.insert(partial_.end(), rest.begin(), rest.end());
    bytes = bytes.subspan(rest.size());
    if (partial_.size() < element) return;
    stats_[tensor_].Merge(ScanValues(dtype, partial_));
  }
  const size_t whole = bytes.size() - bytes.size() % element;
  stats_[tensor_].Merge(ScanValues(dtype, bytes.first(whole)));
  partial_.assign(bytes.begin() + static_cast<ptrdiff_t>(whole), bytes.end());
}

absl::StatusOr<ValueSummary> JudgeValues(const ImageHeader& header, const Adapter& adapter,
                                         std::span<const ValueStats> stats,
                                         double tensor_norm_max) {
  LORRY_CHECK(stats.size() == header.tensors.size());
  ValueSummary summary{.all_b_zero = true};
  for (const AdapterModule& module : adapter.modules) {
    for (const size_t index : {module.a, module.b}) {
      if (!stats[index].finite) {
        return Refuse(
            "TENSOR_NOT_FINITE",
            absl::StrCat(
                Quoted(header.tensors[index].name),
                " holds NaN or infinity; the training step diverged, publish an earlier one"));
      }
      const double norm = std::sqrt(stats[index].sum_squares);
      if (tensor_norm_max > 0 && norm > tensor_norm_max)
        return NormExceeded(header.tensors[index].name, norm, tensor_norm_max);
    }
    summary.all_b_zero &= stats[module.b].zero;
  }
  return summary;
}

}  // namespace lorry::peft
