#include "tests/fuzz/script.h"

#include <algorithm>

namespace lorry::fuzz {

std::vector<Command> ReadScript(std::string_view bytes) {
  std::vector<Command> commands;
  while (!bytes.empty() && commands.size() < kCommandsMax) {
    const std::string_view one = bytes.substr(0, bytes.find(kSeparator));
    bytes.remove_prefix(std::min(bytes.size(), one.size() + 1));
    if (one.empty()) continue;
    const auto arg = static_cast<uint8_t>(one.size() > 1 ? one[1] - '0' : 0);
    commands.push_back({one[0], arg, one.substr(std::min(kHeadBytes, one.size()))});
  }
  return commands;
}

std::string Expand(std::string_view payload, size_t limit) {
  std::string out;
  for (size_t i = 0; i < payload.size() && out.size() < limit; ++i) {
    if (payload[i] == kManyBytes && i + 1 < payload.size()) {
      const int log2 = std::min<int>(payload[++i] & 31, kManyBytesLog2Max);
      out.append(std::min(size_t{1} << log2, limit - out.size()), 'a');
    } else {
      out += payload[i];
    }
  }
  return out;
}

}  // namespace lorry::fuzz
