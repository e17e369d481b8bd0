#include "lib/peft/render.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "lib/base/error.h"
#include "lib/peft/refusal.h"

namespace lorry::peft {
namespace {

using nlohmann::json;

// Whole numbers as integers: vLLM declares lora_alpha an int, and PEFT writes one.
json Number(double value) {
  if (value == std::trunc(value)) return static_cast<int64_t>(value);  // |alpha| <= kAlphaMax
  return value;
}

json Modules(const ModuleSet& modules) {
  if (!modules.expression.empty()) return modules.expression;
  return modules.names.empty() ? json() : json(modules.names);
}

template <typename List>
json ListOrNull(const List& list) {
  return list.empty() ? json() : json(list);
}

}  // namespace

absl::StatusOr<std::string> RenderConfig(const Config& config, std::span<const std::string> modules,
                                         const RenderOptions& options) {
  const bool fold = options.fold_rslora && config.use_rslora;
  if (fold && !config.rank_pattern.empty()) {
    return Refuse("RENDER_INEXACT",
                  "rsLoRA with rank_pattern needs another lora_alpha for each rank, which this "
                  "engine does not read; train with one r and one lora_alpha");
  }
  const double fold_factor = fold ? std::sqrt(static_cast<double>(config.r)) : 1;
  json alpha_pattern = json::object();
  for (const auto& [pattern, alpha] : config.alpha_pattern)
    alpha_pattern[pattern] = Number(alpha * fold_factor);
  const std::string& base = options.base_model_name_or_path.empty()
                                ? config.base_model_name_or_path
                                : options.base_model_name_or_path;
  const json rendered = {
      {"alpha_pattern", alpha_pattern},
      {"base_model_name_or_path", base.empty() ? json() : json(base)},
      {"bias", "none"},
      {"exclude_modules", Modules(config.exclude_modules)},
      {"fan_in_fan_out", config.fan_in_fan_out},
      {"inference_mode", true},
      {"layers_pattern", ListOrNull(config.layers_pattern)},
      {"layers_to_transform", ListOrNull(config.layers_to_transform)},
      {"lora_alpha", Number(config.lora_alpha * fold_factor)},
      {"lora_dropout", 0.0},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", config.rank_pattern},
      {"target_modules", std::vector<std::string>(modules.begin(), modules.end())},
      {"task_type", config.task_type.empty() ? json() : json(config.task_type)},
      {"use_dora", false},
      {"use_rslora", config.use_rslora && !fold},
  };
  return rendered.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lorry::peft
