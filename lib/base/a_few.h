// What a large fleet says, as people read it: the first few items and words, enough to see what is
// wrong. Pure, any thread.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"

namespace lorry {

// The first four items, and how many more there are.
inline std::string AFew(const std::vector<std::string>& items, std::string_view between = ", ") {
  constexpr size_t kNamed = 4;
  const size_t named = std::min(items.size(), kNamed);
  const auto end = items.begin() + static_cast<ptrdiff_t>(named);
  std::string text = absl::StrJoin(items.begin(), end, ToAbsl(between));
  if (named == items.size()) return text;
  return absl::StrCat(text, ToAbsl(between), "and ", items.size() - named, " more");
}

// What begins a traceback, say: a record may have one of each member.
inline std::string Beginning(std::string_view words) { return Utf8(words, 400); }

}  // namespace lorry
