// The numbers of an image: finite, within the policy's norm, and whether every B is still zero.
// One pass over the bytes, which may come in pieces of any size and at any alignment, or tensor by
// tensor on several threads with the results merged. Pure; a ValueScanner belongs to one thread at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/validate.h"

namespace lorry::peft {

struct ValueStats {
  bool finite = true;
  bool zero = true;        // every element is 0 or -0
  double sum_squares = 0;  // of finite elements, in single precision within blocks; may be infinite
  void Merge(const ValueStats& other) {
    finite &= other.finite;
    zero &= other.zero;
    sum_squares += other.sum_squares;
  }
};

// `bytes`: little-endian elements of an adapter dtype (IsAdapterDtype), a whole number of them.
ValueStats ScanValues(Dtype dtype, std::span<const std::byte> bytes);

// Scans an image that passes by in order, header included.
class ValueScanner {
 public:
  // `header` must outlive the scanner.
  explicit ValueScanner(const ImageHeader& header);

  void Add(std::span<const std::byte> bytes);
  // One for each tensor of the header, in its order. Tensors of other dtypes stay as constructed.
  const std::vector<ValueStats>& stats() const { return stats_; }

 private:
  void AddToTensor(std::span<const std::byte> bytes);

  const ImageHeader& header_;
  std::vector<ValueStats> stats_;
  uint64_t offset_ = 0;             // of the next byte in the image
  size_t tensor_ = 0;               // the tensor that holds it, once past the header
  std::vector<std::byte> partial_;  // the front of an element that a piece cut in two
};

struct ValueSummary {
  bool all_b_zero = false;  // the adapter's output equals the base model's
};

// TENSOR_NOT_FINITE, NORM_EXCEEDED. `stats` as ValueScanner gives them for the header that was
// validated. `tensor_norm_max`: the policy's largest Frobenius norm of one lora_A or lora_B; 0:
// any.
absl::StatusOr<ValueSummary> JudgeValues(const ImageHeader& header, const Adapter& adapter,
                                         std::span<const ValueStats> stats, double tensor_norm_max);

}  // namespace lorry::peft
