// How far a typed name is from a known one: for "did you mean". Pure, any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace lorry {

// Levenshtein's: bytes to insert, remove or replace. Quadratic; callers bound the lengths.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace lorry
