// Whether an image and its config are one plain LoRA that engines serve as it was trained. No
// engine can be trusted to check this: SGLang dies at the first use of a wrong shape, vLLM answers
// nonsense. Here the header and the config are judged, in values.h the numbers. Pure functions, any
// thread.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/base_model.h"
#include "lib/peft/config.h"
#include "lib/peft/image.h"
#include "lib/peft/reference.h"
#include "lib/peft/trained_on.h"
#include "lib/peft/traits.h"

namespace lorry::peft {

// Of the image's metadata: see Traits::relative_norm_ppm. Decimal digits.
inline constexpr std::string_view kRelativeNormKey = "lorry.relative_norm_ppm";

struct Adapter {
  std::vector<AdapterModule> modules;  // sorted by path
  Traits traits;                       // all_b_zero still false
  Reference reference;
  TrainedOn trained_on;
};

// Shapes are checked against each other. Reasons, each with a remedy in its message:
//   as ReadCanonicalName (names.h): what is no plain LoRA, or not named as engines read it
//   TENSOR_DTYPE     not F32, F16 or BF16
//   TENSOR_UNPAIRED  lora_A without lora_B or the reverse
//   TENSOR_SHAPE     not two-dimensional, or A and B do not fit together
//   RANK_MISMATCH    another rank than the config's r or rank_pattern
//   MODULE_UNKNOWN   not one of target_modules
//   IMAGE_MALFORMED  metadata of ours that cannot be read
absl::StatusOr<Adapter> ValidateAdapter(const ImageHeader& header, const Config& config);

// BASE_MODEL_MISMATCH: the base model has no such module, or one of another shape, no such token as
// the reference has, or is of another architecture than the one that it was trained on.
absl::Status CheckFits(const Adapter& adapter, const BaseModel& base);

}  // namespace lorry::peft
