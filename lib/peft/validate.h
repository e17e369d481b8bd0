// Whether an image and its config are one plain LoRA that engines serve as it was trained. No
// engine can be trusted to check this: SGLang dies at the first use of a wrong shape, vLLM answers
// nonsense. Here the header and the config are judged, in values.h the numbers. Pure functions, any
// thread.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/base_model.h"
#include "lib/peft/config.h"
#include "lib/peft/image.h"
#include "lib/peft/traits.h"

namespace lorry::peft {

struct Adapter {
  std::vector<AdapterModule> modules;  // sorted by path
  Traits traits;                       // all_b_zero still false
};

// Without `base` shapes are checked against each other only. Reasons, each with a remedy in its
// message:
//   as ReadCanonicalName (names.h): what is no plain LoRA, or not named as engines read it
//   TENSOR_DTYPE     not F32, F16 or BF16
//   TENSOR_UNPAIRED  lora_A without lora_B or the reverse
//   TENSOR_SHAPE     not two-dimensional, or A and B or the base model's module do not fit together
//   RANK_MISMATCH    another rank than the config's r or rank_pattern
//   MODULE_UNKNOWN   no such module in the base model, or not one of target_modules
absl::StatusOr<Adapter> ValidateAdapter(const ImageHeader& header, const Config& config,
                                        const BaseModel* base = nullptr);

}  // namespace lorry::peft
