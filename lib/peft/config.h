// A PEFT adapter_config.json: the fields that change what an adapter computes, and their canonical
// form.
//
// Only plain LoRA gets through. A field that PEFT is known to read while training alone is ignored;
// a field nobody here knows is ignored while it is null, false, 0 or empty, and refused otherwise:
// a setting that an engine silently drops would serve other weights than were trained. Values only,
// any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::peft {

// Ranks in use end at 512 (vLLM's largest); no hidden size is below 4096 where a larger one would
// be of use.
inline constexpr uint32_t kRankMax = 4096;
inline constexpr double kAlphaMax = 1e9;

// PEFT's target_modules and its like: a list of names, or one text that PEFT reads as an
// expression.
struct ModuleSet {
  std::vector<std::string> names;  // sorted, each once
  std::string expression;  // "all-linear" or a regular expression; empty when `names` counts
  bool operator==(const ModuleSet&) const = default;
};

struct Config {
  uint32_t r = 8;
  double lora_alpha = 8;
  bool use_rslora = false;
  bool fan_in_fan_out = false;
  std::map<std::string, uint32_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  ModuleSet target_modules;
  ModuleSet exclude_modules;
  std::vector<uint32_t> layers_to_transform;  // sorted, each once; empty = all
  std::vector<std::string> layers_pattern;

  // Carried along for RenderConfig, no part of the canonical form: they differ between machines.
  std::string base_model_name_or_path;
  std::string task_type;
  bool operator==(const Config&) const = default;
};

// CONFIG_MALFORMED, CONFIG_FIELD_UNKNOWN, CONFIG_UNSUPPORTED, ADAPTER_KIND_UNSUPPORTED,
// DORA_UNSUPPORTED, BIAS_UNSUPPORTED, MODULES_TO_SAVE_UNSUPPORTED, EMBEDDING_UNSUPPORTED. What is
// absent has PEFT's default.
absl::StatusOr<Config> ParseConfig(std::string_view json);

// One line of JSON that is equal exactly when the results are: keys and sets sorted, defaults
// filled in, one number format. It is part of the digest (digest.h); testdata/configs.json holds
// vectors for other languages. Fails only on text that is not UTF-8.
absl::StatusOr<std::string> CanonicalConfig(const Config& config);

// What rank_pattern and alpha_pattern say of the module at `path`
// ("model.layers.0.self_attn.q_proj"). nullopt: a key is a regular expression beyond the plain
// ones, and only PEFT itself can tell.
std::optional<uint32_t> RankOf(const Config& config, std::string_view path);
std::optional<double> AlphaOf(const Config& config, std::string_view path);

// PEFT's match of a plain pattern: `path` is `pattern` or ends in "." + `pattern`; "." stands for
// any byte and
// "\." for a dot, a leading "^" asks for the whole path. nullopt: not a plain pattern.
std::optional<bool> MatchesPattern(std::string_view pattern, std::string_view path);

}  // namespace lorry::peft
