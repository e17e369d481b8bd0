// What somebody who mistyped a name may have meant. Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lorry::store {

// Names compared for a suggestion: enough for people, cheap for a store of any size.
inline constexpr size_t kNamesCompared = 1'000;

// "; did you mean policy or policy-b?", or nothing where no name is near.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& names);

}  // namespace lorry::store
