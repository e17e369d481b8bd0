#include "services/adapter_store/catalog/nearest.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_join.h"

namespace lorry::store {
namespace {
constexpr size_t kSuggestionsMax = 3;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
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
