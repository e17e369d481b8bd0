#include "lib/base/utf8.h"

#include <nlohmann/json.hpp>

namespace lorry {

std::string Utf8(std::string_view words, size_t bytes_max) {
  if (words.empty()) return "";
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
