// The adapter image: the bytes of `adapter_model.safetensors`, read and laid out without ever
// needing the whole of it in memory. Both directions work on the header alone: 8 bytes of length,
// JSON, padding. Values only, any thread. Everything read is untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/dtype.h"

namespace lorry::peft {

// A mixture of 128 experts in 48 layers with 3 projections each has 36,864 tensors and a header of
// 5 MB; three times that is room enough, and small enough to hold for every upload at once.
inline constexpr uint64_t kHeaderBytesMax = 16u << 20;
inline constexpr size_t kTensorsMax = 131'072;
// Real names have about 80 bytes; real adapters have two dimensions, stacked experts three.
inline constexpr size_t kTensorNameBytesMax = 1024;
inline constexpr size_t kTensorDimsMax = 8;
// Adapters are megabytes to a few gigabytes; 1 TiB keeps every sum of sizes far from overflow.
inline constexpr uint64_t kImageBytesMax = 1ull << 40;

struct Tensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // byte offsets in the image, not in its data part
  uint64_t end = 0;
  bool operator==(const Tensor&) const = default;
};

// Pairs in file order: the package writes several keys in an order of its own, so the order is the
// writer's.
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct ImageHeader {
  Metadata metadata;
  std::vector<Tensor> tensors;  // in file order: contiguous from data_begin to image_bytes
  uint64_t data_begin = 0;      // 8 + the JSON's length
  uint64_t image_bytes = 0;
  bool operator==(const ImageHeader&) const = default;
};

// How many bytes of the image ParseImageHeader needs, from the image's first 8 bytes.
// IMAGE_TRUNCATED, IMAGE_MALFORMED.
absl::StatusOr<uint64_t> HeaderBytes(std::span<const std::byte> first, uint64_t image_bytes);

// Reads the header at the front of `prefix` (at least HeaderBytes(...) bytes) of an image of
// `image_bytes`. Strict: known dtypes, no duplicate or unknown keys, tensors contiguous, not
// overlapping and covering the data exactly. IMAGE_TRUNCATED when the image ends before its tensors
// do, IMAGE_MALFORMED for everything else.
absl::StatusOr<ImageHeader> ParseImageHeader(std::span<const std::byte> prefix,
                                             uint64_t image_bytes);

struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<uint64_t> shape;
};

struct ImageLayout {
  std::string header_bytes;  // the image's first bytes, up to header.data_begin
  ImageHeader header;        // where each tensor's bytes belong
};

// The image of these tensors, byte for byte as the `safetensors` package 0.8 writes it: dtype
// descending, then name; compact JSON; spaces up to a multiple of 8. The caller puts each tensor's
// bytes at [begin, end).
// No metadata and empty metadata are spelled differently, there as here.
absl::StatusOr<ImageLayout> LayOutImage(std::vector<TensorSpec> tensors,
                                        const std::optional<Metadata>& metadata);

}  // namespace lorry::peft
