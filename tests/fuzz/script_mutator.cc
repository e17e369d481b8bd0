// Mutations that know what a script is made of: commands, and JSON values inside of them. Some are
// left to libFuzzer.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/prng.h"
#include "tests/fuzz/script.h"

// libFuzzer's; absent in a replay.
extern "C" [[gnu::weak]] size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace lorry::fuzz {
namespace {

constexpr std::string_view kTellingValues[] = {"[]",
                                               "[]",
                                               "{}",
                                               "\"\"",
                                               "null",
                                               "true",
                                               "false",
                                               "0",
                                               "1",
                                               "-1",
                                               "2",
                                               "64",
                                               "65",
                                               "4096",
                                               "18446744073709551616",
                                               "1e99",
                                               "[[]]",
                                               "[null]",
                                               "[\"\"]",
                                               "\"a\"",
                                               "[\"a\",\"b\"]",
                                               "[\"a\",\"a\"]",
                                               "[{}]",
                                               "[1,2,3]",
                                               "{\"a\":1}",
                                               "0.5"};

// The end of the JSON value that begins at `at`, as far as one can tell without parsing.
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

// Replaces one JSON value, or writes another one before it.
void ChangeValue(std::string& script, Prng& prng) {
  std::vector<size_t> places;
  for (size_t i = 0; i + 1 < script.size(); ++i) {
    if (script[i] == ':' || script[i] == '[' || script[i] == ',') places.push_back(i + 1);
  }
  if (places.empty()) return;
  const size_t at = places[prng.Below(places.size())];
  const std::string_view fresh = kTellingValues[prng.Below(std::size(kTellingValues))];
  if (prng.Chance(800)) {
    script.replace(at, EndOfValue(script, at) - at, fresh);
  } else {
    script.insert(at, std::string(fresh) + ",");
  }
}

// Makes one of the long runs longer or shorter.
void ChangeRun(std::string& script, Prng& prng) {
  std::vector<size_t> runs;
  for (size_t i = 0; i + 1 < script.size(); ++i) {
    if (script[i] == kManyBytes) runs.push_back(i + 1);
  }
  if (runs.empty()) return;
  const uint64_t log2 =
      prng.Chance(300) ? uint64_t{kManyBytesLog2Max} : prng.Below(kManyBytesLog2Max);
  script[runs[prng.Below(runs.size())]] = static_cast<char>('`' + log2);
}

// Repeats, drops, swaps or alters one command.
void ChangeCommands(std::string& script, Prng& prng) {
  std::vector<std::string> commands(1);
  for (const char c : script) {
    if (c == kSeparator) {
      commands.emplace_back();
    } else {
      commands.back() += c;
    }
  }
  std::string& one = commands[prng.Below(commands.size())];
  std::string& other = commands[prng.Below(commands.size())];
  switch (prng.Below(5)) {
    case 0:
      commands.insert(commands.begin() + static_cast<ptrdiff_t>(prng.Below(commands.size() + 1)),
                      std::string(one));
      break;
    case 1:
      one.clear();
      break;
    case 2:
      std::swap(one, other);
      break;
    case 3:
      if (one.size() > 1) one[1] = static_cast<char>('0' + prng.Below(64));
      break;
    case 4:
      one.resize(prng.Below(one.size() + 1));
      break;
  }
  script.clear();
  for (const std::string& command : commands) {
    if (!command.empty()) {
      if (!script.empty()) script += kSeparator;
      script += command;
    }
  }
}

}  // namespace
}  // namespace lorry::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  lorry::Prng prng(seed);
  if (LLVMFuzzerMutate != nullptr && prng.Chance(300)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string script(reinterpret_cast<const char*>(data), size);
  for (size_t edits = prng.Below(3) + 1; edits > 0; --edits) {
    if (prng.Chance(100)) {
      lorry::fuzz::ChangeRun(script, prng);
    } else if (prng.Chance(600)) {
      lorry::fuzz::ChangeValue(script, prng);
    } else {
      lorry::fuzz::ChangeCommands(script, prng);
    }
  }
  script.resize(std::min(script.size(), max_size));
  std::memcpy(data, script.data(), script.size());
  return script.size();
}
