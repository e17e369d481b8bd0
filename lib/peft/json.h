// JSON as lib/peft reads and writes it: bounded, duplicate keys refused, one spelling for every
// value. Internal to lib/peft; nlohmann's exceptions end here. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::peft {

// Real adapter_config.json files have 1 to 2 KB, with long rank patterns some 100 KB; config.json
// of models the same. Nothing in either nests deeper than 4.
inline constexpr size_t kConfigBytesMax = 1u << 20;
inline constexpr size_t kConfigDepthMax = 16;

// A JSON object, or CONFIG_MALFORMED that begins with `what`.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view what);

// `text` as a JSON string: only ", \ and control bytes escaped, UTF-8 kept. Python's
// json.dumps(s, ensure_ascii=False) and the safetensors package spell it the same.
// CONFIG_MALFORMED when it is not UTF-8.
absl::StatusOr<std::string> JsonString(std::string_view text);

// The one number format: shortest digits that read back the same, as Python's repr() lays them out,
// except that whole numbers below 2^53 have no fraction ("16", never "16.0"). `value` must be
// finite.
std::string JsonNumber(double value);

// A whole number in [0, 2^32), whether written 8 or 8.0.
std::optional<uint32_t> WholeNumber(const nlohmann::json& value);

}  // namespace lorry::peft
