// What a person may have meant by a name that is not known. Pure, any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lorry::door {

// Up to three of `known`, nearest to `typed` first.
std::vector<std::string> NearestNames(std::string_view typed,
                                      const std::vector<std::string>& known);

}  // namespace lorry::door
