#include "clients/cli/directory_name.h"

#include <charconv>

namespace lorry::cli {

std::optional<NamedVersion> VersionOfDirectory(std::string_view name) {
  const size_t last = name.find_last_not_of("0123456789");
  const std::string_view before = name.substr(0, last == name.npos ? 0 : last + 1);
  const std::string_view digits = name.substr(before.size());
  uint64_t number = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (read.ec != std::errc()) return std::nullopt;
  if (before.empty() || before == "v" || before == "checkpoint-" || before == "step-") {
    return NamedVersion{"", number};
  }
  constexpr std::string_view kMark = "-v";
  if (!before.ends_with(kMark) || before.size() == kMark.size()) return std::nullopt;
  return NamedVersion{std::string(before.substr(0, before.size() - kMark.size())), number};
}

}  // namespace lorry::cli
