// A number with its noun, as people read it. Pure, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"

namespace lorry {

// "1 adapter", "0 adapters", "2 adapters"; `many` is for words that take more than an s: "aliases".
inline std::string Counted(uint64_t count, std::string_view one, std::string_view many = {}) {
  if (count == 1) return absl::StrCat("1 ", ToAbsl(one));
  return many.empty() ? absl::StrCat(count, " ", ToAbsl(one), "s")
                      : absl::StrCat(count, " ", ToAbsl(many));
}

}  // namespace lorry
