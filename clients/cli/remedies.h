// What to do about a reason: the column "do" of docs/ERRORS.md, which is built into the program, so
// that page and program cannot disagree. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace lorry::cli {

// Empty for a reason that the page does not list.
std::string Remedy(std::string_view reason);

// The same for any page of that form; for tests.
std::string RemedyIn(std::string_view page, std::string_view reason);

}  // namespace lorry::cli
