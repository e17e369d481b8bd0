// Any bytes as the pickle of a call with tensors, behind a byte that says how they are laid out.
//
// What is taken lies within the bytes, whatever strides say, and is no more than may come of them;
// what is refused has a reason that can be said in an answer.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "services/engine_proxy/bindings/torch_pickle.h"

using namespace lorry;         // NOLINT(google-build-using-namespace)
using namespace lorry::proxy;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBytesMax = 1u << 20;

bool IsText(absl::string_view bytes) {
  using json = nlohmann::json;
  const std::string text(bytes);
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace)) == text;
}

// Element by element, as the strides say.
void CheckCopy(const SentTensor& tensor, std::string_view pickle) {
  const auto* const begin = reinterpret_cast<const std::byte*>(pickle.data());
  LORRY_CHECK(tensor.data.empty() ||
              (tensor.data.data() >= begin &&
               tensor.data.data() + tensor.data.size() <= begin + pickle.size()));
  const uint64_t item = peft::ElementBytes(tensor.dtype);
  std::vector<std::byte> copy(tensor.bytes());
  CopyTensor(tensor, copy);
  for (uint64_t at = 0; at < copy.size() / item; ++at) {
    uint64_t left = at, from = 0;
    for (size_t i = tensor.shape.size(); i > 0; --i) {
      from += left % tensor.shape[i - 1] * tensor.strides[i - 1];
      left /= tensor.shape[i - 1];
    }
    LORRY_CHECK((from + 1) * item <= tensor.data.size());
    const std::byte* const element = tensor.data.data() + from * item;
    LORRY_CHECK(std::equal(element, element + item, copy.data() + at * item));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view pickle(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto layout = data[0] % 2 == 0 ? TensorLayout::kDict : TensorLayout::kFlatBucket;
  const auto read = ReadTorchPickle(pickle, layout, kBytesMax);
  if (!read.ok()) {
    LORRY_CHECK(!ReasonOf(read.status()).empty());
    LORRY_CHECK(IsText(read.status().message()));
    return 0;
  }
  uint64_t all = 0;
  for (const SentTensor& tensor : *read) {
    LORRY_CHECK(tensor.shape.size() == tensor.strides.size());
    all += tensor.bytes();
    CheckCopy(tensor, pickle);
  }
  LORRY_CHECK(all <= kBytesMax && all <= 16 * pickle.size());
  return 0;
}
