#include "lib/peft/base_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/peft/json.h"
#include "lib/peft/names.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

// Their modules are named as Llama's: q, k, v and o under self_attn; gate, up and down under mlp.
constexpr std::array<std::string_view, 9> kLlamaLike = {"llama",       "mistral",   "qwen2",
                                                        "qwen3",       "gemma",     "gemma2",
                                                        "gemma3_text", "qwen2_moe", "qwen3_moe"};
constexpr std::string_view kMixtral = "mixtral";

bool Contains(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsGiven(const json& fields, const char* name) {
  const auto field = fields.find(name);
  return field != fields.end() && !field->is_null();
}

// Empty where there is none.
std::string NameIn(const json& fields, const char* name) {
  if (!fields.is_object()) return "";
  const auto field = fields.find(name);
  return field != fields.end() && field->is_string() ? field->get<std::string>() : "";
}

absl::Status ReadSize(const json& fields, const char* name, uint64_t& to) {
  // Sizes are multiplied with each other; real ones end far below 2^31.
  constexpr uint64_t kSizeMax = uint64_t{1} << 31;
  const auto field = fields.find(name);
  const uint64_t value = field == fields.end() ? 0 : WholeNumber(*field).value_or(0);
  if (value == 0 || value > kSizeMax) {
    return Refuse("CONFIG_MALFORMED",
                  absl::StrCat("the base model's config.json has no positive ", name,
                               "; give the file that came with the model"));
  }
  to = value;
  return absl::OkStatus();
}

absl::Status ReadAttention(const json& fields, BaseModel& model) {
  const std::string_view type = model.architecture;
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_attention_heads", model.heads));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "vocab_size", model.vocab_size));
  // Old Llama files leave these two out; transformers then fills in the same values.
  model.kv_heads = model.heads;
  if (IsGiven(fields, "num_key_value_heads") || type != "llama") {
    LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_key_value_heads", model.kv_heads));
  }
  model.head_dim = model.hidden_size / model.heads;
  // Of these it is a number of its own, and nothing says what it is where the file does not.
  const bool own = type.starts_with("qwen3") || type.starts_with("gemma");
  if (IsGiven(fields, "head_dim") || own) return ReadSize(fields, "head_dim", model.head_dim);
  return absl::OkStatus();
}

absl::Status ReadExperts(const json& fields, BaseModel& model) {
  if (model.architecture == kMixtral) {
    LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_local_experts", model.experts));
    LORRY_RETURN_IF_ERROR(ReadSize(fields, "intermediate_size", model.expert_intermediate_size));
    model.intermediate_size = 0;
    return absl::OkStatus();
  }
  // transformers 5 writes a Qwen3 mixture's under Mixtral's name.
  const char* const experts = IsGiven(fields, "num_experts") ? "num_experts" : "num_local_experts";
  LORRY_RETURN_IF_ERROR(ReadSize(fields, experts, model.experts));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "moe_intermediate_size", model.expert_intermediate_size));
  if (model.architecture != "qwen2_moe") return absl::OkStatus();
  return ReadSize(fields, "shared_expert_intermediate_size", model.shared_expert_intermediate_size);
}

// Takes "12" off the front of "12.mlp.up_proj", leaving "mlp.up_proj".
std::optional<uint64_t> TakeNumber(std::string_view& path) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), number);
  const size_t digits = static_cast<size_t>(end - path.data());
  const bool plain = error == std::errc() && path.substr(digits).starts_with('.') &&
                     (digits == 1 || path[0] != '0');
  if (!plain) return std::nullopt;
  path.remove_prefix(digits + 1);
  return number;
}

bool TakePrefix(std::string_view& path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return false;
  path.remove_prefix(prefix.size());
  return true;
}

// "gate_proj", "up_proj", "down_proj".
std::optional<ModuleShape> MlpShape(uint64_t hidden, uint64_t inner, std::string_view name) {
  if (inner == 0) return std::nullopt;
  if (name == "gate_proj" || name == "up_proj") return ModuleShape{hidden, inner};
  if (name == "down_proj") return ModuleShape{inner, hidden};
  return std::nullopt;
}

std::optional<ModuleShape> ExpertShape(const BaseModel& model, std::string_view path) {
  const uint64_t hidden = model.hidden_size, inner = model.expert_intermediate_size;
  if (path == "gate") return ModuleShape{hidden, model.experts};
  if (path == "shared_expert_gate" && model.shared_expert_intermediate_size > 0)
    return ModuleShape{hidden, 1};
  if (TakePrefix(path, "shared_expert."))
    return MlpShape(hidden, model.shared_expert_intermediate_size, path);
  if (!TakePrefix(path, "experts.")) return std::nullopt;
  const auto expert = TakeNumber(path);
  if (!expert || *expert >= model.experts) return std::nullopt;
  if (model.architecture != kMixtral) return MlpShape(hidden, inner, path);
  if (path == "w1" || path == "w3") return ModuleShape{hidden, inner};
  return path == "w2" ? std::optional(ModuleShape{inner, hidden}) : std::nullopt;
}

std::optional<ModuleShape> CompleteShape(const BaseModel& model, std::string_view path) {
  if (path == "lm_head") return ModuleShape{model.hidden_size, model.vocab_size};
  if (!TakePrefix(path, "model.layers.")) return std::nullopt;
  const auto layer = TakeNumber(path);
  if (!layer || *layer >= model.layers) return std::nullopt;
  const uint64_t attention = model.heads * model.head_dim;
  if (path == "self_attn.q_proj") return ModuleShape{model.hidden_size, attention};
  if (path == "self_attn.k_proj" || path == "self_attn.v_proj")
    return ModuleShape{model.hidden_size, model.kv_heads * model.head_dim};
  if (path == "self_attn.o_proj") return ModuleShape{attention, model.hidden_size};
  if (!TakePrefix(path, model.architecture == kMixtral ? "block_sparse_moe." : "mlp."))
    return std::nullopt;
  // A Qwen mixture may have plain layers between; which ones they are is not looked at.
  if (const auto dense = MlpShape(model.hidden_size, model.intermediate_size, path)) return dense;
  return model.experts > 0 ? ExpertShape(model, path) : std::nullopt;
}

// What every decoder has in common: these read the layer's input, those write its output. Towers
// that see or hear have sizes of their own.
std::optional<ModuleShape> DerivedShape(const BaseModel& model, std::string_view path) {
  constexpr std::array<std::string_view, 10> kReaders = {
      "q_proj",  "k_proj",       "v_proj",   "qkv_proj",           "gate_proj",
      "up_proj", "gate_up_proj", "q_a_proj", "kv_a_proj_with_mqa", "lm_head"};
  constexpr std::array<std::string_view, 2> kWriters = {"o_proj", "down_proj"};
  for (const std::string_view tower : {"vis", "audio", "image", "encoder", "cross"}) {
    if (path.find(tower) != std::string_view::npos) return ModuleShape{};
  }
  constexpr std::string_view kLayers = "layers.";
  if (const size_t at = path.find(kLayers); at != std::string_view::npos && model.layers > 0) {
    std::string_view rest = path.substr(at + kLayers.size());
    if (TakeNumber(rest).value_or(0) >= model.layers) return std::nullopt;
  }
  const std::string_view module = ModuleOf(path);
  ModuleShape shape;
  if (Contains(kReaders, module)) shape.in = model.hidden_size;
  if (Contains(kWriters, module)) shape.out = model.hidden_size;
  return shape;
}

}  // namespace

absl::StatusOr<BaseModel> ParseBaseModel(std::string_view text) {
  LORRY_ASSIGN_OR_RETURN(const json whole, ParseJsonObject(text, "the base model's config.json"));
  const auto nested = whole.find("text_config");
  const bool has_text = nested != whole.end();
  const json& fields = has_text && !whole.contains("hidden_size") ? *nested : whole;
  BaseModel model;
  model.architecture = NameIn(fields, "model_type");
  const auto quantization = whole.find("quantization_config");
  if (quantization != whole.end()) model.quantization = NameIn(*quantization, "quant_method");
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "hidden_size", model.hidden_size));
  // Where the text model is a part of another, its modules have other paths.
  model.complete = &fields == &whole &&
                   (Contains(kLlamaLike, model.architecture) || model.architecture == kMixtral);
  if (!model.complete) {
    if (IsGiven(fields, "num_hidden_layers"))
      LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_hidden_layers", model.layers));
    if (IsGiven(fields, "vocab_size"))
      LORRY_RETURN_IF_ERROR(ReadSize(fields, "vocab_size", model.vocab_size));
    return model;
  }
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "num_hidden_layers", model.layers));
  LORRY_RETURN_IF_ERROR(ReadSize(fields, "intermediate_size", model.intermediate_size));
  LORRY_RETURN_IF_ERROR(ReadAttention(fields, model));
  const bool mixture = model.architecture == kMixtral || model.architecture.ends_with("_moe");
  if (mixture) LORRY_RETURN_IF_ERROR(ReadExperts(fields, model));
  return model;
}

std::optional<ModuleShape> ShapeOf(const BaseModel& model, std::string_view path) {
  return model.complete ? CompleteShape(model, path) : DerivedShape(model, path);
}

std::string ToString(const BaseModel& model) {
  std::string text = absl::StrCat(model.architecture.empty() ? "unnamed" : model.architecture,
                                  ", hidden size ", model.hidden_size);
  if (model.layers > 0) absl::StrAppend(&text, ", ", model.layers, " layers");
  if (model.experts > 0) absl::StrAppend(&text, ", ", model.experts, " experts");
  if (!model.quantization.empty()) absl::StrAppend(&text, ", ", model.quantization);
  if (!model.complete) absl::StrAppend(&text, ", only partly known");
  return text;
}

}  // namespace lorry::peft
