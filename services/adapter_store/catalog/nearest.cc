#include "services/adapter_store/catalog/nearest.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "lib/base/edit_distance.h"

namespace lorry::store {
namespace {
constexpr size_t kSuggestionsMax = 3;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& names) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& candidate : names) {
    const size_t edits = EditDistance(name, candidate);
    if (edits <= std::max<size_t>(2, name.size() / 3)) near.emplace_back(edits, candidate);
  }
  if (near.empty()) return "";
  std::sort(near.begin(), near.end());
  near.resize(std::min(near.size(), kSuggestionsMax));
  const auto just_name = [](std::string* out, const auto& entry) { out->append(entry.second); };
  return "; did you mean " + absl::StrJoin(near, " or ", just_name) + "?";
}

}  // namespace lorry::store
