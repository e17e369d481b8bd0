#include "lib/fleet/selector.h"

#include <charconv>
#include <optional>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"

namespace lorry::fleet {
namespace {

using Kind = Selector::Kind;

// Longer texts are cut where a message repeats them; names end at 63 anyway.
constexpr size_t kRepeatedBytes = 80;
constexpr std::string_view kDigits = "0123456789";

absl::Status Refuse(std::string_view text, std::string_view why) {
  return Error(absl::StatusCode::kInvalidArgument, "NAME_INVALID",
               absl::StrCat("\"", ToAbsl(text.substr(0, kRepeatedBytes)), "\" ", ToAbsl(why)));
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kDigits) == text.npos;
}

// `text` is digits. Nothing when the number does not fit.
std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

// "12", "v12", "r2.12"; nothing when `text` is written otherwise.
std::optional<absl::StatusOr<Selector>> ParseNumbers(std::string_view text) {
  const size_t dot = text.starts_with("r") ? text.find('.') : text.npos;
  const bool with_run = dot != text.npos && IsDigits(text.substr(1, dot - 1));
  std::string_view digits = text;
  if (with_run) {
    digits.remove_prefix(dot + 1);
  } else if (text.starts_with("v")) {
    digits.remove_prefix(1);
  }
  if (!IsDigits(digits)) return std::nullopt;
  const auto number = Number(digits);
  const auto run = with_run ? Number(text.substr(1, dot - 1)) : std::optional<uint64_t>(0);
  if (!number || !run) return Refuse(text, "is too large; numbers end at 18446744073709551615");
  if (!with_run) return Selector{.kind = Kind::kNumber, .number = VersionNumber(*number)};
  if (*run == 0) {
    return Refuse(text, absl::StrCat("names no run, they count from 1; write r1.", *number, ", or ",
                                     *number, " of the current run"));
  }
  return Selector{.kind = Kind::kVersion, .run = RunId(*run), .number = VersionNumber(*number)};
}

// Where "policy-v12" is cut: behind "-v". Nothing when `text` does not end so.
std::optional<size_t> NumberAtEnd(std::string_view text) {
  const size_t last = text.find_last_not_of(kDigits);
  if (last == text.npos || last + 1 == text.size() || last < 2) return std::nullopt;
  return text.substr(0, last + 1).ends_with("-v") ? std::optional(last + 1) : std::nullopt;
}

absl::StatusOr<Selector> Of(std::string_view adapter, absl::StatusOr<Selector> selector) {
  LORRY_RETURN_IF_ERROR(CheckAdapterName(adapter));
  if (!selector.ok()) return Annotate(selector.status(), adapter);
  selector->adapter = AdapterName(std::string(adapter));
  return selector;
}

}  // namespace

absl::StatusOr<Selector> ParseVersion(std::string_view text) {
  if (const auto numbers = ParseNumbers(text)) return *numbers;
  if (text == "latest") return Selector{.kind = Kind::kLatest};
  if (text == "newest") return Selector{.kind = Kind::kNewest};
  if (text == "base") return Refuse(text, "is the engine's own model and no version");
  if (!CheckName("", text).ok()) {
    return Refuse(text, "is no version; write 12, r2.12, newest, latest or an alias such as eval");
  }
  return Selector{.kind = Kind::kAlias, .alias = AliasName(std::string(text))};
}

absl::StatusOr<Selector> ParseSelector(std::string_view text) {
  if (text.empty()) {
    return Refuse(text, "names no adapter; write policy, policy@12 or policy@eval");
  }
  if (const size_t at = text.find('@'); at != text.npos) {
    const std::string_view adapter = text.substr(0, at), version = text.substr(at + 1);
    if (version != "base") return Of(adapter, ParseVersion(version));
    return adapter.empty() ? Selector{.kind = Kind::kBase}
                           : Of(adapter, Selector{.kind = Kind::kBase});
  }
  if (const size_t space = text.find(' '); space != text.npos) {
    const std::string_view adapter = text.substr(0, space);
    auto version = ParseNumbers(text.substr(space + 1));
    if (version && version->ok() && (*version)->kind == Kind::kVersion)
      return Of(adapter, *version);
    return Refuse(text, "has a space in it; write policy, policy@12, policy@r2.12 or policy@eval");
  }
  if (const auto cut = NumberAtEnd(text)) {
    return Of(text.substr(0, *cut - 2), *ParseNumbers(text.substr(*cut)));
  }
  return Of(text, Selector{.kind = Kind::kLatest});
}

std::string ToString(const Selector& selector) {
  const auto with = [&](const auto&... version) {
    return absl::StrCat(selector.adapter.value, "@", version...);
  };
  switch (selector.kind) {
    case Kind::kLatest:
      break;
    case Kind::kNewest:
      return with("newest");
    case Kind::kAlias:
      return with(selector.alias.value);
    case Kind::kNumber:
      return with(selector.number.value);
    case Kind::kVersion:
      return with("r", selector.run.value, ".", selector.number.value);
    case Kind::kBase:
      return with("base");
  }
  return selector.adapter.value;
}

absl::Status CheckAliasName(std::string_view name) {
  LORRY_RETURN_IF_ERROR(CheckName("the alias", name));
  const auto read = ParseVersion(name);
  if (read.ok() && read->kind == Kind::kAlias) return absl::OkStatus();
  return Refuse(name, "cannot be an alias, it has a meaning of its own; choose another, as best");
}

}  // namespace lorry::fleet
