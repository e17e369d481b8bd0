#include "services/adapter_store/images/check.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/config.h"
#include "lib/peft/image.h"
#include "lib/peft/validate.h"
#include "lib/peft/values.h"

namespace lorry::store {
namespace {

struct Judged {
  peft::ImageHeader header;
  peft::Config config;
  std::string canonical;
  peft::Adapter adapter;
};

absl::StatusOr<Judged> Judge(std::span<const std::byte> prefix, uint64_t image_bytes,
                             std::string_view config_json) {
  Judged judged;
  LORRY_ASSIGN_OR_RETURN(judged.config, peft::ParseConfig(config_json));
  LORRY_ASSIGN_OR_RETURN(judged.canonical, peft::CanonicalConfig(judged.config));
  LORRY_ASSIGN_OR_RETURN(judged.header, peft::ParseImageHeader(prefix, image_bytes));
  LORRY_ASSIGN_OR_RETURN(judged.adapter, peft::ValidateAdapter(judged.header, judged.config));
  return judged;
}

}  // namespace

absl::StatusOr<std::string> CheckAnnouncement(std::span<const std::byte> header,
                                              uint64_t image_bytes, std::string_view config_json) {
  LORRY_ASSIGN_OR_RETURN(const uint64_t wanted, peft::HeaderBytes(header, image_bytes));
  if (header.size() != wanted) {
    return Error(absl::StatusCode::kInvalidArgument, "IMAGE_MALFORMED",
                 absl::StrCat("the header has ", header.size(), " bytes, but its first 8 say ",
                              wanted, "; send exactly the image's header"));
  }
  LORRY_ASSIGN_OR_RETURN(Judged judged, Judge(header, image_bytes, config_json));
  return std::move(judged.canonical);
}

absl::StatusOr<CheckOutcome> CheckImage(std::span<const std::byte> image,
                                        std::string_view config_json, double max_tensor_norm) {
  LORRY_ASSIGN_OR_RETURN(Judged judged, Judge(image, image.size(), config_json));
  peft::LeafHasher hasher;
  peft::ValueScanner scanner(judged.header);
  // Leaf by leaf, so that the second look at a byte finds it in the cache.
  for (size_t at = 0; at < image.size(); at += peft::kLeafBytes) {
    const auto piece = image.subspan(at, std::min<size_t>(peft::kLeafBytes, image.size() - at));
    hasher.Add(piece);
    scanner.Add(piece);
  }
  LORRY_ASSIGN_OR_RETURN(
      const peft::ValueSummary values,
      peft::JudgeValues(judged.header, judged.adapter, scanner.stats(), max_tensor_norm));
  judged.adapter.traits.all_b_zero = values.all_b_zero;

  const std::vector<peft::Leaf> leaves = hasher.Finish();
  CheckOutcome outcome;
  LORRY_ASSIGN_OR_RETURN(outcome.image.digest,
                         peft::DigestOf(image.size(), leaves, judged.canonical));
  outcome.image.canonical_config = std::move(judged.canonical);
  outcome.image.traits = judged.adapter.traits;
  outcome.leaves.reserve(leaves.size() * sizeof(peft::Leaf));
  for (const peft::Leaf& leaf : leaves) {
    outcome.leaves.append(reinterpret_cast<const char*>(leaf.bytes.data()), leaf.bytes.size());
  }
  return outcome;
}

std::vector<transfer::Checksum> ToChecksums(std::string_view leaves) {
  std::vector<transfer::Checksum> checksums(leaves.size() / sizeof(transfer::Checksum));
  std::memcpy(checksums.data(), leaves.data(), checksums.size() * sizeof(transfer::Checksum));
  return checksums;
}

}  // namespace lorry::store
