// What the orchestrator and the proxy must know of a version's config to judge and name it. The store
// reads it off the canonical config and the image at commit and hands it out with the version. Values
// only, any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lorry::peft {

struct Config;

// One lora_A, lora_B pair.
struct AdapterModule {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  size_t a = 0;      // indices into ImageHeader::tensors
  size_t b = 0;
  uint32_t rank = 0;
  uint64_t in = 0;
  uint64_t out = 0;
};

struct Traits {
  uint32_t rank_max = 0;  // the largest rank of any module
  bool rslora = false;    // scale = alpha / sqrt(r), else alpha / r
  // Some module's rank or alpha is not the config's r or lora_alpha.
  bool rank_or_alpha_pattern = false;
  // Some layer has q without v, k or v without q, or up without gate: SGLang takes the load and
  // dies at the first request.
  bool partial_groups = false;
  // A fresh adapter: the output equals the base's, so no probe asks it to differ. Known once the
  // values were scanned (values.h).
  bool all_b_zero = false;
  // The largest |dW| / |W| of any module, in Frobenius norms and parts per million, as the trainer
  // computed it and wrote it into the image's metadata; 0: it did not say.
  uint32_t relative_norm_ppm = 0;
  std::vector<std::string> modules;  // last name components, sorted: "down_proj", "q_proj", ...
  auto operator<=>(const Traits&) const = default;
};

// Everything but all_b_zero and relative_norm_ppm.
Traits TraitsOf(const Config& config, std::span<const AdapterModule> modules);

}  // namespace lorry::peft
