// What the tests of lib/peft speak in: images built tensor by tensor, refusals named by their
// reason, golden files.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/image.h"

namespace lorry::peft {

std::span<const std::byte> Bytes(std::string_view text);

// testdata/<file>, whole.
std::string ReadTestdata(std::string_view file);
nlohmann::json ReadGolden(std::string_view file);

// A file of this JSON header, padded, followed by `data_bytes` zeros.
std::string ImageOf(std::string_view json, size_t data_bytes);
absl::StatusOr<ImageHeader> Parse(std::string_view image);

class TestImage {
 public:
  TestImage& Tensor(std::string name, Dtype dtype, std::vector<uint64_t> shape);
  // lora_A (r x in) and lora_B (out x r), all zero.
  TestImage& Module(std::string_view path, uint64_t in, uint64_t out, uint64_t r = 8,
                    Dtype dtype = Dtype::kF32);
  // The header of the image, read back.
  ImageHeader Header() const;

 private:
  std::vector<TensorSpec> specs_;
};

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// INVALID_ARGUMENT with this reason and a message of at least a sentence, ending in a remedy after
// "; ".
MATCHER_P(RefusedAs, reason, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << "status " << status.ToString() << " reason " << ReasonOf(status);
  return status.code() == absl::StatusCode::kInvalidArgument && ReasonOf(status) == reason &&
         ToStd(status.message()).find("; ") != std::string_view::npos;
}

// The same, with these words in its message: which of the reason's several faults it is.
MATCHER_P2(RefusedSaying, reason, says, "") {
  return testing::ExplainMatchResult(RefusedAs(reason), arg, result_listener) &&
         ToStd(StatusOf(arg).message()).find(says) != std::string_view::npos;
}

MATCHER(IsOk, "") {
  *result_listener << StatusOf(arg).ToString();
  return arg.ok();
}

}  // namespace lorry::peft
