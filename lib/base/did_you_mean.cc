#include "lib/base/did_you_mean.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lorry {
namespace {

constexpr size_t kComparedBytes = 80;
constexpr size_t kSuggestionsMax = 3;
// So many mistakes are forgiven in any name, and one more in every three letters.
constexpr size_t kEditsAlways = 2;
// A part this long of a name, or a name in what was typed, is near whatever else differs.
constexpr size_t kPartBytes = 3;

// Levenshtein's: bytes to insert, remove or replace.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

bool Contains(std::string_view whole, std::string_view part) {
  return part.size() >= kPartBytes && whole.find(part) != whole.npos;
}

}  // namespace

std::string DidYouMean(std::string_view typed, const std::vector<std::string>& known) {
  typed = typed.substr(0, kComparedBytes);
  std::vector<std::pair<size_t, std::string_view>> near;
  for (const std::string& name : known) {
    const std::string_view compared = std::string_view(name).substr(0, kComparedBytes);
    const size_t edits = EditDistance(typed, compared);
    if (edits <= std::max(kEditsAlways, typed.size() / 3) || Contains(compared, typed) ||
        Contains(typed, compared)) {
      near.emplace_back(edits, name);
    }
  }
  if (near.empty()) return "";
  std::sort(near.begin(), near.end());
  near.resize(std::min(near.size(), kSuggestionsMax));
  std::string text = "; did you mean ";
  for (size_t i = 0; i < near.size(); ++i) {
    if (i > 0) text += i + 1 < near.size() ? ", " : " or ";
    text += near[i].second;
  }
  return text + "?";
}

}  // namespace lorry
