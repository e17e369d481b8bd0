#include "services/engine_proxy/door/selector.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "lib/base/edit_distance.h"

namespace lorry::door {
namespace {

// Longer names are cut before they are compared: the table is quadratic, and names end at 63
// anyway.
constexpr size_t kComparedLength = 80;
constexpr size_t kSuggestions = 3;

std::optional<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace

Selector ParseSelector(std::string_view text) {
  Selector selector;
  if (text.empty()) return selector;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    selector.adapter = AdapterName(std::string(text.substr(0, at)));
    const std::string_view which = text.substr(at + 1);
    if (which == "base") {
      selector.kind = SelectorKind::kBase;
    } else if (which == "latest") {
      selector.kind = SelectorKind::kLatest;
    } else if (const auto number = ParseNumber(which)) {
      selector.kind = SelectorKind::kNumber;
      selector.number = VersionNumber(*number);
    } else {
      selector.kind = SelectorKind::kAlias;
      selector.alias = AliasName(std::string(which));
    }
    return selector;
  }
  if (const size_t dash = text.rfind("-v"); dash != std::string_view::npos && dash > 0) {
    if (const auto number = ParseNumber(text.substr(dash + 2))) {
      selector.kind = SelectorKind::kNumber;
      selector.adapter = AdapterName(std::string(text.substr(0, dash)));
      selector.number = VersionNumber(*number);
      return selector;
    }
  }
  selector.kind = SelectorKind::kLatest;
  selector.adapter = AdapterName(std::string(text));
  return selector;
}

std::vector<std::string> NearestNames(std::string_view typed,
                                      const std::vector<std::string>& known) {
  typed = typed.substr(0, kComparedLength);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& name : known) {
    const size_t distance = EditDistance(typed, std::string_view(name).substr(0, kComparedLength));
    const bool contains = !typed.empty() && (name.find(typed) != std::string::npos ||
                                             typed.find(name) != std::string_view::npos);
    if (contains || distance <= std::max(typed.size(), name.size()) / 2) {
      near.emplace_back(distance, name);
    }
  }
  std::sort(near.begin(), near.end());
  if (near.size() > kSuggestions) near.resize(kSuggestions);
  std::vector<std::string> names;
  for (auto& [distance, name] : near) names.push_back(std::move(name));
  return names;
}

}  // namespace lorry::door
