// A config, a NUL, an image: everything a commit does with them. What passes is paired and fits its
// config, and scanning in pieces judges as scanning at once.
#include <algorithm>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/peft/digest.h"
#include "lib/peft/names.h"
#include "lib/peft/values.h"

using namespace lorry;        // NOLINT(google-build-using-namespace)
using namespace lorry::peft;  // NOLINT(google-build-using-namespace)

namespace {

template <typename Consumer>
void FeedInPieces(Consumer& consumer, std::span<const std::byte> image, size_t piece_bytes) {
  for (size_t at = 0; at < image.size(); at += piece_bytes) {
    consumer.Add(image.subspan(at, std::min(piece_bytes, image.size() - at)));
  }
}

void CheckValues(const ImageHeader& header, const Adapter& adapter,
                 std::span<const std::byte> image) {
  ValueScanner whole(header), pieces(header);
  whole.Add(image);
  FeedInPieces(pieces, image, 7);
  const auto judged = JudgeValues(header, adapter, whole.stats(), /*tensor_norm_max=*/0);
  const auto again = JudgeValues(header, adapter, pieces.stats(), /*tensor_norm_max=*/0);
  LORRY_CHECK(ReasonOf(judged.status()) == ReasonOf(again.status()));
  if (judged.ok()) LORRY_CHECK(judged->all_b_zero == again->all_b_zero);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* const split = std::find(data, data + size, 0);
  const std::string_view text(reinterpret_cast<const char*>(data),
                              static_cast<size_t>(split - data));
  const size_t skipped = std::min(size, text.size() + 1);
  const auto image = std::as_bytes(std::span(data, size)).subspan(skipped);

  const auto config = ParseConfig(text);
  const auto header = ParseImageHeader(image, image.size());
  if (!config.ok() || !header.ok()) return 0;
  const auto adapter = ValidateAdapter(*header, *config);
  if (!adapter.ok()) {
    LORRY_CHECK(!ReasonOf(adapter.status()).empty());
    return 0;
  }
  LORRY_CHECK(adapter->modules.size() * 2 == header->tensors.size());
  for (const AdapterModule& module : adapter->modules) {
    LORRY_CHECK(header->tensors[module.a].shape == (std::vector<uint64_t>{module.rank, module.in}));
    LORRY_CHECK(header->tensors[module.b].shape ==
                (std::vector<uint64_t>{module.out, module.rank}));
  }
  CheckValues(*header, *adapter, image);

  LeafHasher at_once, in_pieces;
  at_once.Add(image);
  FeedInPieces(in_pieces, image, 1000);
  const auto leaves = at_once.Finish();
  LORRY_CHECK(leaves == in_pieces.Finish());
  LORRY_CHECK(DigestOf(image.size(), leaves, *CanonicalConfig(*config)).ok());
  return 0;
}
