// How versions are written on the command line. Pure functions.
//
//   12   v12   r2.12   newest   latest   eval           a version of a named adapter
//   policy   policy@12   policy@eval   policy-v12       an adapter with, or without, a version
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorry::cli {

struct VersionWord {
  enum class Kind { kNumber, kNewest, kLatest, kAlias };
  Kind kind = Kind::kNewest;
  uint64_t run = 0;  // kNumber; 0: the current run
  uint64_t number = 0;
  std::string alias;  // kAlias
  bool operator==(const VersionWord&) const = default;
};

struct Selector {
  std::string adapter;
  std::optional<VersionWord> version;
  bool operator==(const Selector&) const = default;
};

// INVALID_ARGUMENT USAGE, or NAME_INVALID.
absl::StatusOr<VersionWord> ParseVersionWord(std::string_view text);
absl::StatusOr<Selector> ParseSelector(std::string_view text);

// Adapter and number of a directory's name: "policy-v12" → (policy, 12), "v12", "checkpoint-12" and
// "12" → ("", 12). Nothing where there is no number at the end.
struct NamedVersion {
  std::string adapter;
  uint64_t number = 0;
  bool operator==(const NamedVersion&) const = default;
};
std::optional<NamedVersion> VersionOfDirectory(std::string_view name);

}  // namespace lorry::cli
