#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/peft/config.h"
#include "lib/peft/json.h"

namespace lorry::peft {
namespace {

absl::StatusOr<std::string> List(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) {
    LORRY_ASSIGN_OR_RETURN(const std::string quoted, JsonString(name));
    absl::StrAppend(&text, text.size() > 1 ? "," : "", quoted);
  }
  return text + "]";
}

absl::StatusOr<std::string> Modules(const ModuleSet& modules) {
  return modules.expression.empty() ? List(modules.names) : JsonString(modules.expression);
}

template <typename Value>
absl::StatusOr<std::string> Pattern(const std::map<std::string, Value>& patterns) {
  std::string text = "{";
  for (const auto& [pattern, value] : patterns) {
    LORRY_ASSIGN_OR_RETURN(const std::string quoted, JsonString(pattern));
    absl::StrAppend(&text, text.size() > 1 ? "," : "", quoted, ":", JsonNumber(value));
  }
  return text + "}";
}

const char* Bool(bool value) { return value ? "true" : "false"; }

}  // namespace

// The keys stand in sorted order; the constants are what ParseConfig lets through.
absl::StatusOr<std::string> CanonicalConfig(const Config& config) {
  LORRY_ASSIGN_OR_RETURN(const std::string alpha_pattern, Pattern(config.alpha_pattern));
  LORRY_ASSIGN_OR_RETURN(const std::string exclude_modules, Modules(config.exclude_modules));
  LORRY_ASSIGN_OR_RETURN(const std::string layers_pattern, List(config.layers_pattern));
  LORRY_ASSIGN_OR_RETURN(const std::string rank_pattern, Pattern(config.rank_pattern));
  LORRY_ASSIGN_OR_RETURN(const std::string target_modules, Modules(config.target_modules));
  return absl::StrCat("{\"alpha_pattern\":", alpha_pattern,
                      ",\"bias\":\"none\",\"exclude_modules\":", exclude_modules,
                      ",\"fan_in_fan_out\":", Bool(config.fan_in_fan_out),
                      ",\"layers_pattern\":", layers_pattern, ",\"layers_to_transform\":[",
                      absl::StrJoin(config.layers_to_transform, ","),
                      "],\"lora_alpha\":", JsonNumber(config.lora_alpha),
                      ",\"modules_to_save\":[],\"peft_type\":\"LORA\",\"r\":", config.r,
                      ",\"rank_pattern\":", rank_pattern, ",\"target_modules\":", target_modules,
                      ",\"use_dora\":false,\"use_rslora\":", Bool(config.use_rslora), "}");
}

}  // namespace lorry::peft
