// JSON inside of a script, as far as one can tell without parsing: what mutations have broken is
// still mutated.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace lorry::fuzz {

// The end of the value that begins at `at`.
size_t EndOfValue(std::string_view text, size_t at);
std::string_view ValueAt(std::string_view text, size_t at);
// Where values begin. The name of a field is none.
std::vector<size_t> ValuesOf(std::string_view text);

struct Field {
  std::string_view name;  // without its quotes
  size_t begin;           // of its value
  std::string_view value;
};
// Those of objects within an object, too.
std::vector<Field> FieldsOf(std::string_view text);

}  // namespace lorry::fuzz
