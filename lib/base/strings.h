// Debian's Abseil keeps its own string_view; our interfaces use std::string_view. This is the one
// place where the two meet.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace lorry {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

}  // namespace lorry
