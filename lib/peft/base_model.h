// What a base model's config.json says about the linear modules a LoRA may sit on. Known: the dense
// decoders that name their modules as Llama does (llama, mistral, qwen2, qwen3). Of any other
// architecture nothing is said, and nothing judged by it. Values only, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::peft {

struct BaseModel {
  uint64_t hidden_size = 0;
  uint64_t intermediate_size = 0;
  uint64_t layers = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t vocab_size = 0;
  bool operator==(const BaseModel&) const = default;
};

struct ModuleShape {
  uint64_t in = 0;   // columns of lora_A
  uint64_t out = 0;  // rows of lora_B
  bool operator==(const ModuleShape&) const = default;
};

// From the text of a Hugging Face config.json. No value: an architecture that is not known.
// CONFIG_MALFORMED: a known one that lacks a size.
absl::StatusOr<std::optional<BaseModel>> ParseBaseModel(std::string_view json);

// The linear module at `path` ("model.layers.0.self_attn.q_proj", "lm_head"); nothing when the
// model has none.
std::optional<ModuleShape> ShapeOf(const BaseModel& model, std::string_view path);

}  // namespace lorry::peft
