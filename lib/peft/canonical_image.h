// The image of a PEFT directory with every tensor under its canonical name: what `lorry import`
// publishes and what a binding loads. Works on the header and the config alone; the bytes are copied
// at the end. Everything read is untrusted. Pure, any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "lib/peft/config.h"
#include "lib/peft/image.h"
#include "lib/peft/names.h"
#include "lib/peft/validate.h"

namespace lorry::peft {

struct CanonicalImage {
  ImageHeader source;  // as the directory's file has it
  NamePlan plan;
  ImageLayout layout;       // as it is laid out here
  std::string config_json;  // as written, but for target_modules, which are what the image has
  Config config;
  Adapter adapter;
};

// `front`: of an adapter_model.safetensors of `image_bytes`, at least as much as HeaderBytes says.
// With `base` fused projections are split where that model keeps them apart, and shapes are
// compared. `adapter_in_file` as PlanNames. The reasons of lib/peft for what is in the directory.
absl::StatusOr<CanonicalImage> PlanCanonicalImage(std::span<const std::byte> front,
                                                  uint64_t image_bytes,
                                                  std::string_view config_json,
                                                  const BaseModel* base,
                                                  std::string_view adapter_in_file = "");

// Header and tensors of the whole `file` into `image`, which has
// `planned.layout.header.image_bytes`.
void WriteCanonicalImage(const CanonicalImage& planned, std::span<const std::byte> file,
                         std::span<std::byte> image);

}  // namespace lorry::peft
