// Any bytes as an image: the reader takes them or refuses with a reason; what it takes tiles the
// data part, and the writer makes the same header of it again.
#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/peft/image.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::peft;  // NOLINT(google-build-using-namespace)

namespace {

void CheckTiles(const ImageHeader& header) {
  uint64_t at = header.data_begin;
  for (const Tensor& tensor : header.tensors) {
    LORRY_CHECK(tensor.begin == at && tensor.end >= at);
    uint64_t bytes = ElementBytes(tensor.dtype);
    for (const uint64_t extent : tensor.shape) bytes *= extent;
    LORRY_CHECK(tensor.end - tensor.begin == bytes);
    at = tensor.end;
  }
  LORRY_CHECK(at == header.image_bytes);
}

void CheckRoundTrip(const ImageHeader& header) {
  std::vector<TensorSpec> specs;
  for (const Tensor& tensor : header.tensors)
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
  const auto once = LayOutImage(specs, header.metadata);
  // A shape such as [0, 2^60] is read, for it holds nothing, and not written.
  if (!once.ok()) return;
  LORRY_CHECK(once->header.metadata == header.metadata);
  std::reverse(specs.begin(), specs.end());
  const auto again = LayOutImage(specs, header.metadata);
  LORRY_CHECK(again.ok() && again->header_bytes == once->header_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = ParseImageHeader(bytes, size);
  if (header.ok()) {
    CheckTiles(*header);
    CheckRoundTrip(*header);
  } else {
    const std::string reason = ReasonOf(header.status());
    LORRY_CHECK(reason == "IMAGE_MALFORMED" || reason == "IMAGE_TRUNCATED");
  }
  // A header may come without its data; then the length is only claimed.
  (void)ParseImageHeader(bytes, size + 4096);
  return 0;
}
