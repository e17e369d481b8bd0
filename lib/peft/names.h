// Tensor names as every engine reads them:
//
//   base_model.model.<module path>.lora_A.weight     and     ....lora_B.weight
//
// Trainers name the same tensors in many ways. PlanNames maps theirs to these, where the image is
// built (client) or read in (a directory); services move images and only check. testdata/names.json
// holds vectors for the other languages that implement this. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/peft/base_model.h"

namespace lorry::peft {

struct LoraName {
  std::string path;     // "model.layers.0.self_attn.q_proj": as in the model, without PEFT's prefix
  bool is_b = false;    // lora_B, else lora_A
  std::string adapter;  // "default" of "lora_A.default.weight"; empty in canonical names
  bool operator==(const LoraName&) const = default;
};

std::string CanonicalName(const LoraName& name);

// The last component of a path: "q_proj".
std::string_view ModuleOf(std::string_view path);

// Reads a trainer's name: strips the wrappers of DDP (module.), torch.compile (_orig_mod.), FSDP
// (_fsdp_wrapped_module.), activation checkpointing and PEFT. What is no lora_A or lora_B of a
// linear module is refused by what it is: DORA_UNSUPPORTED, BIAS_UNSUPPORTED,
// MODULES_TO_SAVE_UNSUPPORTED, EMBEDDING_UNSUPPORTED, ADAPTER_KIND_UNSUPPORTED, else
// TENSOR_UNKNOWN.
absl::StatusOr<LoraName> ReadName(std::string_view name);

// The same for a stored image, whose names must be canonical already (else TENSOR_UNKNOWN).
absl::StatusOr<LoraName> ReadCanonicalName(std::string_view name);

struct SourceTensor {
  std::string name;
  std::vector<uint64_t> shape;
};

// One tensor of the image: rows [row_begin, row_end) of a source tensor; of their columns `column`
// and every column_step-th after it.
struct PlannedTensor {
  std::string name;
  size_t source = 0;  // index into the sources
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
  uint64_t column = 0;
  uint64_t column_step = 1;
  bool operator==(const PlannedTensor&) const = default;
};

struct NamePlan {
  std::vector<PlannedTensor> tensors;       // sorted by name, each once
  std::vector<std::string> target_modules;  // last components, sorted
  // Experts were taken apart: target_modules says now what the config's target_parameters said.
  bool unstacked = false;
  bool split = false;  // fused modules were
};

// Maps every source tensor or fails; nothing is dropped in silence, except the tensors of other
// adapters when `adapter` names one. With a base model that keeps q, k, v and gate, up apart, fused
// `qkv_proj` and `gate_up_proj` are split: B by rows, A repeated, which computes exactly the same. So
// are experts that PEFT adapts as one parameter (target_parameters), each into matrices of its own:
// engines read those alike, and stacked ones each in another way.
// As ReadName, and TENSOR_AMBIGUOUS (two sources for one name, several adapters), TENSOR_SHAPE (a
// fused or stacked module whose shapes are not those of its parts).
absl::StatusOr<NamePlan> PlanNames(std::span<const SourceTensor> sources, const BaseModel* base,
                                   std::string_view adapter = "");

}  // namespace lorry::peft
