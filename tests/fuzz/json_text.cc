#include "tests/fuzz/json_text.h"

#include "tests/fuzz/script.h"

namespace lorry::fuzz {

size_t EndOfValue(std::string_view text, size_t at) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = at; i < text.size(); ++i) {
    const char c = text[i];
    if (c == kSeparator) return i;
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
      if (!quoted && depth == 0) return i + 1;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) return i;
      if (depth == 0) return i + 1;
    } else if (c == ',' && depth == 0) {
      return i;
    }
  }
  return text.size();
}

std::string_view ValueAt(std::string_view text, size_t at) {
  return text.substr(at, EndOfValue(text, at) - at);
}

std::vector<size_t> ValuesOf(std::string_view text) {
  std::vector<size_t> places;
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    if (text[i] != ':' && text[i] != '[' && text[i] != ',') continue;
    const size_t end = text[i + 1] == '"' ? EndOfValue(text, i + 1) : text.size();
    const bool is_name = end < text.size() && text[end] == ':';
    if (!is_name) places.push_back(i + 1);
  }
  return places;
}

std::vector<Field> FieldsOf(std::string_view text) {
  std::vector<Field> fields;
  for (size_t end = text.find("\":"); end != std::string_view::npos;
       end = text.find("\":", end + 1)) {
    const size_t quote = end == 0 ? std::string_view::npos : text.rfind('"', end - 1);
    if (quote == std::string_view::npos) continue;
    const size_t begin = end + 2;
    fields.push_back({.name = text.substr(quote + 1, end - quote - 1),
                      .begin = begin,
                      .value = ValueAt(text, begin)});
  }
  return fields;
}

}  // namespace lorry::fuzz
