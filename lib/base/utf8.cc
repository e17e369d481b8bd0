#include "lib/base/utf8.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lorry {

std::string Utf8(std::string_view words, size_t bytes_max) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (words.size() <= bytes_max && std::ranges::all_of(words, is_ascii)) return std::string(words);
  using Json = nlohmann::json;
  // Four bytes more, so that what this cut halves lies behind the other one.
  const Json quoted = std::string(words.substr(0, bytes_max + 4));
  std::string text = Json::parse(quoted.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;
  text.resize(end);
  return text;
}

}  // namespace lorry
