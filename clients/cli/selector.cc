#include "clients/cli/selector.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/verb.h"
#include "lib/base/error.h"
#include "lib/base/ids.h"
#include "lib/base/strings.h"

namespace lorry::cli {
namespace {

std::optional<uint64_t> Whole(std::string_view text) {
  uint64_t number = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (!digits || !absl::SimpleAtoi(ToAbsl(text), &number)) return std::nullopt;
  return number;
}

// "12", "v12", "r2.12".
std::optional<VersionWord> ParseNumber(std::string_view text) {
  using Kind = VersionWord::Kind;
  if (text.starts_with("v")) text.remove_prefix(1);
  if (const auto number = Whole(text)) return VersionWord{Kind::kNumber, 0, *number, ""};
  const size_t dot = text.find('.');
  if (!text.starts_with("r") || dot == text.npos) return std::nullopt;
  const auto run = Whole(text.substr(1, dot - 1));
  const auto number = Whole(text.substr(dot + 1));
  if (!run.has_value() || !number.has_value()) return std::nullopt;
  return VersionWord{Kind::kNumber, *run, *number, ""};
}

// Where the digits at the end begin.
size_t DigitsAtEnd(std::string_view text) {
  const size_t last = text.find_last_not_of("0123456789");
  return last == text.npos ? 0 : last + 1;
}

}  // namespace

absl::StatusOr<VersionWord> ParseVersionWord(std::string_view text) {
  if (const auto number = ParseNumber(text)) return *number;
  if (text == "newest") return VersionWord{VersionWord::Kind::kNewest, 0, 0, ""};
  if (text == "latest") return VersionWord{VersionWord::Kind::kLatest, 0, 0, ""};
  if (absl::Status named = CheckName("alias", text); !named.ok()) {
    return Usage(absl::StrCat("\"", ToAbsl(text),
                              "\" is no version; write 12, r2.12, newest, latest or an alias"));
  }
  return VersionWord{VersionWord::Kind::kAlias, 0, 0, std::string(text)};
}

absl::StatusOr<Selector> ParseSelector(std::string_view text) {
  Selector selector;
  const size_t at = text.find('@');
  if (at != text.npos) {
    LORRY_ASSIGN_OR_RETURN(selector.version, ParseVersionWord(text.substr(at + 1)));
    selector.adapter = std::string(text.substr(0, at));
  } else if (const auto named = VersionOfDirectory(text);
             named.has_value() && !named->adapter.empty()) {
    selector.adapter = named->adapter;
    selector.version = VersionWord{VersionWord::Kind::kNumber, 0, named->number, ""};
  } else {
    selector.adapter = std::string(text);
  }
  LORRY_RETURN_IF_ERROR(CheckAdapterName(selector.adapter));
  return selector;
}

std::optional<NamedVersion> VersionOfDirectory(std::string_view name) {
  const size_t digits = DigitsAtEnd(name);
  const auto number = Whole(name.substr(digits));
  if (!number.has_value()) return std::nullopt;
  const std::string_view before = name.substr(0, digits);
  if (before.empty() || before == "v" || before == "checkpoint-" || before == "step-") {
    return NamedVersion{"", *number};
  }
  constexpr std::string_view kMark = "-v";
  if (!before.ends_with(kMark) || before.size() == kMark.size()) return std::nullopt;
  return NamedVersion{std::string(before.substr(0, before.size() - kMark.size())), *number};
}

}  // namespace lorry::cli
