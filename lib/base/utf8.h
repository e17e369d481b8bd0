// Words of strangers, as records and messages need them: protobuf reads no string that is not UTF-8,
// and with it not the message that has it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lorry {

// `words` with U+FFFD for what is not UTF-8, cut after the last whole character of the first
// `bytes_max` bytes.
std::string Utf8(std::string_view words, size_t bytes_max);

}  // namespace lorry
