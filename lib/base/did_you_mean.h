// What somebody who mistyped a name may have meant. Pure, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lorry {

// "; did you mean policy or policy-b?": up to three of `known`, the nearest first; empty where none
// is near. Costs |typed| · |known|; only the first 80 bytes of a name are looked at.
std::string DidYouMean(std::string_view typed, const std::vector<std::string>& known);

}  // namespace lorry
