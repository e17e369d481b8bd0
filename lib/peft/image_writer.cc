#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/image.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

absl::Status AppendString(std::string_view text, std::string& json) {
  const auto quoted = JsonString(text);
  if (!quoted.ok()) {
    return Refuse("IMAGE_MALFORMED",
                  absl::StrCat("the name ", Quoted(text), " is not UTF-8; rename it"));
  }
  json += *quoted;
  return absl::OkStatus();
}

absl::Status AppendMetadata(const Metadata& metadata, std::string& json) {
  json += "\"__metadata__\":{";
  for (size_t i = 0; i < metadata.size(); ++i) {
    if (i > 0) json += ',';
    LORRY_RETURN_IF_ERROR(AppendString(metadata[i].first, json));
    json += ':';
    LORRY_RETURN_IF_ERROR(AppendString(metadata[i].second, json));
  }
  json += "},";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ImageLayout> LayOutImage(std::vector<TensorSpec> tensors,
                                        const std::optional<Metadata>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return std::tie(b.dtype, a.name) < std::tie(a.dtype, b.name);
  });
  std::string json = "{";
  if (metadata) LORRY_RETURN_IF_ERROR(AppendMetadata(*metadata, json));
  uint64_t at = 0;
  for (const TensorSpec& tensor : tensors) {
    uint64_t bytes = ElementBytes(tensor.dtype);
    for (const uint64_t extent : tensor.shape) {
      if (extent != 0 && bytes > kImageBytesMax / extent) {
        return Refuse("TENSOR_SHAPE",
                      absl::StrCat(Quoted(tensor.name), " is absurdly large; check its shape"));
      }
      bytes *= extent;
    }
    LORRY_RETURN_IF_ERROR(AppendString(tensor.name, json));
    absl::StrAppend(&json, ":{\"dtype\":\"", ToAbsl(ToString(tensor.dtype)), "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", at, ",", at + bytes,
                    "]},");
    at += bytes;
    if (at > kImageBytesMax)
      return Refuse("TENSOR_SHAPE", "the tensors are absurdly large; check their shapes");
  }
  json.back() = '}';
  json.append((8 - json.size() % 8) % 8, ' ');

  ImageLayout layout;
  for (int shift = 0; shift < 64; shift += 8) {
    layout.header_bytes += static_cast<char>(static_cast<uint64_t>(json.size()) >> shift);
  }
  layout.header_bytes += json;
  // Reading it back fills in the offsets and refuses what the reader would refuse: duplicates, no
  // tensors.
  const auto bytes =
      std::as_bytes(std::span(layout.header_bytes.data(), layout.header_bytes.size()));
  LORRY_ASSIGN_OR_RETURN(layout.header, ParseImageHeader(bytes, bytes.size() + at));
  return layout;
}

}  // namespace lorry::peft
