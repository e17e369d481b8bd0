#include "lib/peft/base_model.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

absl::Status ReadSize(const json& fields, const char* name, uint64_t& to) {
  const auto field = fields.find(name);
  const auto value = field == fields.end() ? std::nullopt : WholeNumber(*field);
  if (!value || *value == 0) {
    return Refuse("CONFIG_MALFORMED",
                  absl::StrCat("the base model's config.json has no positive ", name,
                               "; give the file that came with the model"));
  }
  to = *value;
  return absl::OkStatus();
}

// Takes "12" off the front of "12.mlp.up_proj", leaving "mlp.up_proj".
std::optional<uint64_t> TakeLayer(std::string_view& path) {
  uint64_t layer = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), layer);
  const size_t digits = static_cast<size_t>(end - path.data());
  const bool plain = error == std::errc() && digits < path.size() && path[digits] == '.' &&
                     (digits == 1 || path[0] != '0');
  if (!plain) return std::nullopt;
  path.remove_prefix(digits + 1);
  return layer;
}

}  // namespace

absl::StatusOr<std::optional<BaseModel>> ParseBaseModel(std::string_view text) {
  LORRY_ASSIGN_OR_RETURN(const json fields, ParseJsonObject(text, "the base model's config.json"));
  const json type = fields.value("model_type", json());
  if (type != "llama" && type != "mistral" && type != "qwen2" && type != "qwen3")
    return std::nullopt;
  BaseModel model;
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "hidden_size", model.hidden_size));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "intermediate_size", model.intermediate_size));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_hidden_layers", model.layers));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_attention_heads", model.heads));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "vocab_size", model.vocab_size));
  const auto given = [&](const char* name) {
    return fields.contains(name) && !fields[name].is_null();
  };
  // Old Llama files leave these two out; transformers then fills in the same values.
  model.kv_heads = model.heads;
  if (given("num_key_value_heads") || type != "llama") {
    LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_key_value_heads", model.kv_heads));
  }
  model.head_dim = model.hidden_size / model.heads;
  if (given("head_dim") || type == "qwen3") {
    LORRY_RETURN_IF_ERROR(ReadSize(fields, "head_dim", model.head_dim));
  }
  return model;
}

std::optional<ModuleShape> ShapeOf(const BaseModel& model, std::string_view path) {
  if (path == "lm_head") return ModuleShape{model.hidden_size, model.vocab_size};
  constexpr std::string_view kLayers = "model.layers.";
  if (!path.starts_with(kLayers)) return std::nullopt;
  path.remove_prefix(kLayers.size());
  const auto layer = TakeLayer(path);
  if (!layer || *layer >= model.layers) return std::nullopt;
  const uint64_t attention = model.heads * model.head_dim;
  if (path == "self_attn.q_proj") return ModuleShape{model.hidden_size, attention};
  if (path == "self_attn.k_proj" || path == "self_attn.v_proj") {
    return ModuleShape{model.hidden_size, model.kv_heads * model.head_dim};
  }
  if (path == "self_attn.o_proj") return ModuleShape{attention, model.hidden_size};
  if (path == "mlp.gate_proj" || path == "mlp.up_proj") {
    return ModuleShape{model.hidden_size, model.intermediate_size};
  }
  if (path == "mlp.down_proj") return ModuleShape{model.intermediate_size, model.hidden_size};
  return std::nullopt;
}

}  // namespace lorry::peft
