// The adapter_config.json that an engine reads. PEFT's field names, which SGLang and vLLM share;
// what they ignore is either harmless or refused before (fleet's WhyNotServable). Pure, any thread.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "lib/peft/config.h"

namespace lorry::peft {

struct RenderOptions {
  // Render id "rslora-folded": use_rslora=false and lora_alpha' = lora_alpha * sqrt(r), for engines
  // that scale by alpha / r whatever use_rslora says (SGLang). Without rsLoRA it changes nothing.
  bool fold_rslora = false;
  // What the file names as its base; empty = what the config named. Neither engine looks at it.
  std::string base_model_name_or_path;
};

// `modules`: Traits::modules. target_modules becomes exactly this list, because SGLang takes no
// expression and vLLM checks every name. Pretty-printed with sorted keys, as PEFT saves it; the
// same input gives the same bytes. RENDER_INEXACT: folding with rank_pattern, where no one alpha is
// right.
absl::StatusOr<std::string> RenderConfig(const Config& config, std::span<const std::string> modules,
                                         const RenderOptions& options);

}  // namespace lorry::peft
