#include "services/engine_proxy/calls/query.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace lorry::calls {
namespace {

constexpr std::array<std::string_view, 6> kTrue = {"1", "t", "true", "y", "yes", "on"};
constexpr std::array<std::string_view, 6> kFalse = {"0", "f", "false", "n", "no", "off"};

}  // namespace

std::vector<QueryField> QueryFields(std::string_view query) {
  std::vector<QueryField> fields;
  if (query.starts_with('?')) query.remove_prefix(1);
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), field.size() + 1));
    const size_t equals = std::min(field.size(), field.find('='));
    const size_t value = std::min(field.size(), equals + 1);
    if (!field.empty()) fields.push_back({field.substr(0, equals), field.substr(value)});
  }
  return fields;
}

std::optional<std::string_view> FindInQuery(const std::vector<QueryField>& fields,
                                            std::string_view name) {
  const auto last = std::find_if(fields.rbegin(), fields.rend(),
                                 [&](const QueryField& field) { return field.name == name; });
  if (last == fields.rend()) return std::nullopt;
  return last->value;
}

std::optional<bool> TruthOf(std::string_view word) {
  std::string lower(word);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (std::ranges::count(kTrue, lower) > 0) return true;
  if (std::ranges::count(kFalse, lower) > 0) return false;
  return std::nullopt;
}

}  // namespace lorry::calls
