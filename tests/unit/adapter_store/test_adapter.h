// A small adapter that passes every check: one attention layer, values that follow from a seed.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lib/base/check.h"
#include "lib/base/prng.h"
#include "lib/peft/config.h"
#include "lib/peft/digest.h"
#include "lib/peft/image.h"

namespace lorry::store {

inline constexpr uint64_t kTestRank = 8;

struct TestAdapter {
  std::string image;
  std::string config = R"({"peft_type":"LORA","r":8,"lora_alpha":16,)"
                       R"("target_modules":["k_proj","q_proj","v_proj"]})";
  uint64_t header_bytes = 0;

  std::string header() const { return image.substr(0, header_bytes); }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(image)); }
};

// About 24 * width * kTestRank bytes.
inline TestAdapter MakeAdapter(uint64_t seed, uint64_t width = 256) {
  std::vector<peft::TensorSpec> specs;
  for (const char* module : {"q_proj", "k_proj", "v_proj"}) {
    const std::string path =
        absl::StrCat("base_model.model.model.layers.0.self_attn.", module, ".lora_");
    specs.push_back({path + "A.weight", peft::Dtype::kF32, {kTestRank, width}});
    specs.push_back({path + "B.weight", peft::Dtype::kF32, {width, kTestRank}});
  }
  const peft::Metadata metadata = {std::pair(std::string("format"), std::string("pt"))};
  const auto layout = peft::LayOutImage(std::move(specs), metadata);
  LORRY_CHECK(layout.ok());
  TestAdapter adapter;
  adapter.image = layout->header_bytes;
  adapter.header_bytes = adapter.image.size();
  adapter.image.resize(layout->header.image_bytes);
  Prng prng(seed);
  for (size_t at = adapter.header_bytes; at < adapter.image.size(); at += sizeof(float)) {
    const float value = static_cast<float>(prng.Below(2000)) / 1000 - 1;
    std::memcpy(adapter.image.data() + at, &value, sizeof(value));
  }
  return adapter;
}

// The digest as anybody would compute it who has image and config.
inline Digest DigestOf(std::span<const std::byte> image, const std::string& config_json) {
  peft::LeafHasher hasher;
  hasher.Add(image);
  const auto config = peft::ParseConfig(config_json);
  LORRY_CHECK(config.ok());
  const auto digest =
      peft::DigestOf(image.size(), hasher.Finish(), peft::CanonicalConfig(*config).value());
  LORRY_CHECK(digest.ok());
  return *digest;
}

}  // namespace lorry::store
