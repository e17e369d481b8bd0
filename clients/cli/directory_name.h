// Adapter and number that a directory is named after. Pure function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lorry::cli {

// "policy-v12" → (policy, 12); "v12", "checkpoint-12", "step-12" and "12" → ("", 12). Nothing where
// there is no number at the end.
struct NamedVersion {
  std::string adapter;
  uint64_t number = 0;
  bool operator==(const NamedVersion&) const = default;
};
std::optional<NamedVersion> VersionOfDirectory(std::string_view name);

}  // namespace lorry::cli
