// The element types that a safetensors header may name. Values only, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lorry::peft {

// In the order of the safetensors package: its writer lays tensors out by this order descending,
// then by name. The sub-byte types (F4, F6_*) are left out: no adapter has them and no engine would
// read them.
enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// The spelling in the header: "BF16".
std::string_view ToString(Dtype dtype);
std::optional<Dtype> DtypeFromString(std::string_view text);

// Bytes of one element.
uint64_t ElementBytes(Dtype dtype);

// F32, F16 and BF16: what every engine reads and what ScanValues understands.
inline bool IsAdapterDtype(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16;
}

}  // namespace lorry::peft
