#include "lib/peft/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/json.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

constexpr auto kRead = std::to_array<std::string_view>({
    "alpha_pattern",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_bias",
    "modules_to_save",
    "peft_type",
    "r",
    "rank_pattern",
    "target_modules",
    "task_type",
    "trainable_token_indices",
    "use_dora",
    "use_rslora",
});

// Read by PEFT for training, for bookkeeping or before the first step; a stored adapter computes
// the same whatever they hold. Read in the sources of PEFT 0.21.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "velora_config",
});

// Settings of PEFT that change the result in a way that no engine follows.
constexpr auto kUnsupported = std::to_array<std::string_view>({
    "alora_invocation_tokens",
    "arrow_config",
    "kasa_config",
    "layer_replication",
    "monteclora_config",
    "use_bdlora",
    "use_qalora",
});

// Initialisations that leave the base weights as they are. The others (PiSSA, OLoRA, CorDA, LoftQ,
// LoRA-GA) move a part of them into the adapter, which is then wrong on the unchanged base that
// engines hold.
constexpr auto kPlainInits =
    std::to_array<std::string_view>({"eva", "gaussian", "mica", "orthogonal"});

template <size_t N>
bool Contains(const std::array<std::string_view, N>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool IsFalsy(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return value.empty();
}

absl::Status WrongType(std::string_view field, std::string_view expected) {
  return Refuse("CONFIG_MALFORMED", absl::StrCat("adapter_config.json: ", ToAbsl(field), " is not ",
                                                 ToAbsl(expected), "; correct it"));
}

// The fields that make an adapter something else than a plain LoRA.
absl::Status CheckKind(const json& fields) {
  const auto truthy = [&](const char* name) {
    return fields.contains(name) && !IsFalsy(fields[name]);
  };
  const json kind = fields.value("peft_type", json());
  if (kind != "LORA") {
    return Refuse("ADAPTER_KIND_UNSUPPORTED",
                  absl::StrCat("peft_type is ",
                               kind.is_string() ? Quoted(kind.get<std::string>()) : "missing",
                               ", engines load only \"LORA\"; ", ToAbsl(kSyncMerged)));
  }
  if (truthy("use_dora")) {
    return Refuse(
        "DORA_UNSUPPORTED",
        absl::StrCat("use_dora is set and engines have no DoRA; train with use_dora=False or ",
                     ToAbsl(kSyncMerged)));
  }
  if (truthy("lora_bias") || (truthy("bias") && fields["bias"] != "none")) {
    return Refuse("BIAS_UNSUPPORTED",
                  absl::StrCat("the adapter trains biases, which engines would drop; train with "
                               "bias=\"none\" and lora_bias=False or ",
                               ToAbsl(kSyncMerged)));
  }
  if (truthy("modules_to_save")) {
    return Refuse(
        "MODULES_TO_SAVE_UNSUPPORTED",
        absl::StrCat(
            "modules_to_save trains whole modules, which engines would drop; leave it empty or ",
            ToAbsl(kSyncMerged)));
  }
  if (truthy("trainable_token_indices")) {
    return Refuse(
        "EMBEDDING_UNSUPPORTED",
        absl::StrCat(
            "trainable_token_indices trains embeddings, which engines would drop; leave it out or ",
            ToAbsl(kSyncMerged)));
  }
  return absl::OkStatus();
}

absl::Status CheckInit(const json& fields) {
  const auto init = fields.find("init_lora_weights");
  if (init == fields.end() || !init->is_string()) return absl::OkStatus();
  if (Contains(kPlainInits, init->get_ref<const std::string&>())) return absl::OkStatus();
  return Refuse(
      "CONFIG_UNSUPPORTED",
      absl::StrCat(
          "init_lora_weights is ", Quoted(init->get<std::string>()),
          ", which changes the base weights that engines keep unchanged; convert the adapter by "
          "save_pretrained(path_initial_model_for_weight_conversion=...) and publish that"));
}

absl::Status CheckOtherFields(const json& fields) {
  for (const auto& [name, value] : fields.items()) {
    if (IsFalsy(value) || Contains(kRead, name) || Contains(kHarmless, name)) continue;
    if (name == "target_parameters") {
      return Refuse("CONFIG_UNSUPPORTED",
                    absl::StrCat("target_parameters adapts experts as one parameter, which each "
                                 "engine reads in another way; those of qwen2_moe and qwen3_moe "
                                 "are taken apart by the base model's config.json, so publish with "
                                 "it; of other models train without it or ",
                                 ToAbsl(kSyncMerged)));
    }
    if (Contains(kUnsupported, name)) {
      return Refuse("CONFIG_UNSUPPORTED",
                    absl::StrCat(name,
                                 " changes the result in a way that engines do not follow; "
                                 "train without it or ",
                                 ToAbsl(kSyncMerged)));
    }
    return Refuse(
        "CONFIG_FIELD_UNKNOWN",
        absl::StrCat("adapter_config.json has the field ", Quoted(name),
                     ", and whether it changes the result is not known; remove it if it does not"));
  }
  return absl::OkStatus();
}

absl::Status ReadBool(const json& fields, const char* name, bool& to) {
  const auto field = fields.find(name);
  if (field == fields.end() || field->is_null()) return absl::OkStatus();
  if (!field->is_boolean()) return WrongType(name, "true or false");
  to = field->get<bool>();
  return absl::OkStatus();
}

absl::Status ReadText(const json& fields, const char* name, std::string& to) {
  const auto field = fields.find(name);
  if (field == fields.end() || field->is_null()) return absl::OkStatus();
  if (!field->is_string()) return WrongType(name, "a text");
  to = field->get<std::string>();
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> Rank(const json& value, std::string_view field) {
  const uint32_t rank = WholeNumber(value).value_or(0);
  if (rank == 0 || rank > kRankMax) {
    return WrongType(field, absl::StrCat("a rank from 1 to ", kRankMax));
  }
  return rank;
}

absl::StatusOr<double> Alpha(const json& value, std::string_view field) {
  const double alpha = value.is_number() ? value.get<double>() : std::nan("");
  if (!(std::fabs(alpha) <= kAlphaMax)) return WrongType(field, "a number between -1e9 and 1e9");
  return alpha;
}

// {pattern: value}, each value read by `read`.
template <typename Value, typename Read>
absl::Status ReadPattern(const json& fields, const char* name, Read read,
                         std::map<std::string, Value>& to) {
  const auto field = fields.find(name);
  if (field == fields.end() || field->is_null()) return absl::OkStatus();
  if (!field->is_object()) return WrongType(name, "an object of pattern: number");
  for (const auto& [pattern, value] : field->items()) {
    LORRY_ASSIGN_OR_RETURN(to[pattern], read(value, name));
  }
  return absl::OkStatus();
}

template <typename T>
void SortUnique(std::vector<T>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

absl::Status ReadTexts(const json& list, const char* name, std::vector<std::string>& to) {
  if (!list.is_array()) return WrongType(name, "a list of names");
  for (const json& item : list) {
    if (!item.is_string()) return WrongType(name, "a list of names");
    to.push_back(item.get<std::string>());
  }
  SortUnique(to);
  return absl::OkStatus();
}

absl::Status ReadModules(const json& fields, const char* name, ModuleSet& to) {
  const auto field = fields.find(name);
  if (field == fields.end() || field->is_null()) return absl::OkStatus();
  if (field->is_string()) return ReadText(fields, name, to.expression);
  return ReadTexts(*field, name, to.names);
}

absl::Status ReadLayers(const json& fields, Config& config) {
  if (const auto pattern = fields.find("layers_pattern");
      pattern != fields.end() && !IsFalsy(*pattern)) {
    const json list = pattern->is_string() ? json::array({*pattern}) : *pattern;
    LORRY_RETURN_IF_ERROR(ReadTexts(list, "layers_pattern", config.layers_pattern));
  }
  const auto layers = fields.find("layers_to_transform");
  if (layers == fields.end() || layers->is_null()) return absl::OkStatus();
  const json list = layers->is_number() ? json::array({*layers}) : *layers;
  if (!list.is_array()) return WrongType("layers_to_transform", "a list of layer numbers");
  for (const json& item : list) {
    const auto layer = WholeNumber(item);
    if (!layer) return WrongType("layers_to_transform", "a list of layer numbers");
    config.layers_to_transform.push_back(*layer);
  }
  SortUnique(config.layers_to_transform);
  return absl::OkStatus();
}

// The value of the first matching pattern, in sorted order as PEFT saves them.
template <typename Value>
std::optional<Value> ByPattern(const std::map<std::string, Value>& patterns, std::string_view path,
                               Value otherwise) {
  for (const auto& [pattern, value] : patterns) {
    const auto matches = MatchesPattern(pattern, path);
    if (!matches) return std::nullopt;
    if (*matches) return value;
  }
  return otherwise;
}

}  // namespace

absl::StatusOr<Config> ParseConfig(std::string_view text) {
  LORRY_ASSIGN_OR_RETURN(const json fields, ParseJsonObject(text, "adapter_config.json"));
  LORRY_RETURN_IF_ERROR(CheckKind(fields));
  LORRY_RETURN_IF_ERROR(CheckInit(fields));
  LORRY_RETURN_IF_ERROR(CheckOtherFields(fields));
  Config config;
  if (fields.contains("r")) {
    LORRY_ASSIGN_OR_RETURN(config.r, Rank(fields["r"], "r"));
  }
  if (fields.contains("lora_alpha")) {
    LORRY_ASSIGN_OR_RETURN(config.lora_alpha, Alpha(fields["lora_alpha"], "lora_alpha"));
  }
  LORRY_RETURN_IF_ERROR(ReadPattern(fields, "rank_pattern", Rank, config.rank_pattern));
  LORRY_RETURN_IF_ERROR(ReadPattern(fields, "alpha_pattern", Alpha, config.alpha_pattern));
  LORRY_RETURN_IF_ERROR(ReadBool(fields, "use_rslora", config.use_rslora));
  LORRY_RETURN_IF_ERROR(ReadBool(fields, "fan_in_fan_out", config.fan_in_fan_out));
  LORRY_RETURN_IF_ERROR(ReadModules(fields, "target_modules", config.target_modules));
  LORRY_RETURN_IF_ERROR(ReadModules(fields, "exclude_modules", config.exclude_modules));
  LORRY_RETURN_IF_ERROR(ReadLayers(fields, config));
  LORRY_RETURN_IF_ERROR(
      ReadText(fields, "base_model_name_or_path", config.base_model_name_or_path));
  LORRY_RETURN_IF_ERROR(ReadText(fields, "task_type", config.task_type));
  return config;
}

std::optional<bool> MatchesPattern(std::string_view pattern, std::string_view path) {
  const bool whole = pattern.starts_with('^');
  if (whole) pattern.remove_prefix(1);
  // Each unit is a byte to match, or 0 for any.
  std::string units;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-') {
      units += c;
    } else if (c == '.') {
      units += '\0';
    } else if (pattern.substr(i).starts_with("\\.")) {
      units += pattern[++i];
    } else {
      return std::nullopt;
    }
  }
  if (units.size() > path.size() || (whole && units.size() != path.size())) return false;
  const size_t at = path.size() - units.size();
  if (at > 0 && path[at - 1] != '.') return false;
  for (size_t i = 0; i < units.size(); ++i) {
    if (units[i] != '\0' && units[i] != path[at + i]) return false;
  }
  return true;
}

std::optional<uint32_t> RankOf(const Config& config, std::string_view path) {
  return ByPattern(config.rank_pattern, path, config.r);
}

std::optional<double> AlphaOf(const Config& config, std::string_view path) {
  return ByPattern(config.alpha_pattern, path, config.lora_alpha);
}

}  // namespace lorry::peft
