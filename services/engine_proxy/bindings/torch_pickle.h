// Tensors out of a pickle that torch wrote: names, types, shapes and where their bytes lie in it.
//
// Known are the few things that a dict of dense tensors on the CPU is made of, as `pickle.dumps` and
// SGLang's FlattenedTensorBucket write them. Tensors whose bytes are not in the pickle, but in the
// memory of the trainer's GPU or in memory that it shares with its children, are refused by what they
// are. Pure, any thread. Everything read is untrusted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/dtype.h"

namespace lorry::proxy {

struct SentTensor {
  std::string name;
  peft::Dtype dtype = peft::Dtype::kF32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;    // in elements, as many as `shape` has
  std::span<const std::byte> data;  // from its first element on, with all that the strides reach

  uint64_t bytes() const;  // of its elements
};

enum class TensorLayout {
  kDict,        // a name for each tensor
  kFlatBucket,  // load_format "flattened_bucket"
};

// In the pickle's order. `pickle` outlives the result. All of them together are at most `bytes_max`
// bytes. TENSORS_INVALID; TENSORS_ELSEWHERE: their bytes are not here.
absl::StatusOr<std::vector<SentTensor>> ReadTorchPickle(std::string_view pickle,
                                                        TensorLayout layout, uint64_t bytes_max);

// The elements one behind the other, as torch's contiguous() has them, into bytes() bytes.
void CopyTensor(const SentTensor& tensor, std::span<std::byte> to);

}  // namespace lorry::proxy
