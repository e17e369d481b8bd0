// An input that is a list of commands, for fuzzers that drive a whole program: what happens, in
// which order.
//
// A command is a letter, a digit, and bytes up to the next record separator (0x1e), so that a
// corpus file is nearly text and libFuzzer's own mutations keep most of it intact. Inside of a
// payload 0x01 and a byte k stand for 2^k times the letter a, which lets a small input send much.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lorry::fuzz {

inline constexpr char kSeparator = '\x1e';
inline constexpr size_t kHeadBytes = 2;  // of a command: its letter and its digit
inline constexpr char kManyBytes = '\x01';
inline constexpr int kManyBytesLog2Max = 20;
inline constexpr size_t kCommandsMax = 64;
// Where nothing has moved for so long something is stuck; a busy machine may hold a process up.
inline constexpr int64_t kPatienceMs = 30'000;

struct Command {
  char op = 0;
  uint8_t arg = 0;
  std::string_view payload;
};

// The first kCommandsMax commands; they refer to `bytes`.
std::vector<Command> ReadScript(std::string_view bytes);

// `payload` with its long runs written out, at most `limit` bytes.
std::string Expand(std::string_view payload, size_t limit);

}  // namespace lorry::fuzz
