// What a base model's config.json says about the linear modules a LoRA may sit on. Of the decoders
// that name their modules as Llama does, and of the mixtures of experts built on them, every module
// is known: one that is not here does not exist. Of any other architecture only those sides of a
// module are known that every decoder derives from hidden_size. Values only, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::peft {

struct BaseModel {
  std::string architecture;  // config.json's model_type: "llama"
  uint64_t hidden_size = 0;
  uint64_t layers = 0;
  // Where `complete` is false only the fields above and `vocab_size` are known, and all of them but
  // hidden_size may be 0.
  bool complete = false;
  uint64_t intermediate_size = 0;  // 0: every layer is a mixture of experts
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t vocab_size = 0;
  uint64_t experts = 0;  // 0: dense
  uint64_t expert_intermediate_size = 0;
  uint64_t shared_expert_intermediate_size = 0;  // 0: no expert that is always asked
  // How its weights are quantised, by the config's quant_method: "fp8", "awq"; empty: they are not.
  std::string quantization = {};
  std::string revision = {};  // its commit on the Hugging Face Hub; empty: not known
  auto operator<=>(const BaseModel&) const = default;
};

struct ModuleShape {
  uint64_t in = 0;   // columns of lora_A; 0: not known
  uint64_t out = 0;  // rows of lora_B; 0: not known
  bool operator==(const ModuleShape&) const = default;
};

// From the text of a Hugging Face config.json; of a model that reads more than text, its
// text_config counts. CONFIG_MALFORMED: it lacks a size that its architecture needs, or
// hidden_size, without which nothing is known.
absl::StatusOr<BaseModel> ParseBaseModel(std::string_view json);

// The linear module at `path` ("model.layers.0.self_attn.q_proj", "lm_head"); nothing when the
// model has none.
std::optional<ModuleShape> ShapeOf(const BaseModel& model, std::string_view path);

// For people: "llama, hidden size 128, 2 layers".
std::string ToString(const BaseModel& model);

}  // namespace lorry::peft
