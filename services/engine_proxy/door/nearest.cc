#include "services/engine_proxy/door/nearest.h"

#include <algorithm>
#include <utility>

#include "lib/base/edit_distance.h"

namespace lorry::door {
namespace {

// Longer names are cut before they are compared: the table is quadratic, and names end at 63
// anyway.
constexpr size_t kComparedLength = 80;
constexpr size_t kSuggestions = 3;

}  // namespace

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
