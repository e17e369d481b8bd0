// Mutations that know what a script is made of: commands, and methods, numbers, paths and JSON values
// inside of them; and crosses that take whole commands, or the method or the target of one. Some
// mutations are left to libFuzzer.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "lib/base/prng.h"
#include "tests/fuzz/call_edits.h"
#include "tests/fuzz/json_text.h"
#include "tests/fuzz/script.h"

// libFuzzer's; absent in a replay.
extern "C" [[gnu::weak]] size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace lorry::fuzz {
namespace {

constexpr std::string_view kTellingValues[] = {
    "[]", "[]", "{}", "\"\"", "null", "true", "false", "0", "1", "-1", "2", "64", "65", "4096",
    "18446744073709551616", "1e99", "[[]]", "[null]", "[\"\"]", "\"a\"", "[\"a\",\"b\"]",
    "[\"a\",\"a\"]", "[{}]", "[1,2,3]", "{\"a\":1}", "0.5", "\"..\"", "\"../../a\"",
    // 2^16 and 2^20 letters.
    "\"\x01p\"", "\"\x01t\""};

// What programs forget most often.
constexpr std::string_view kEmptyValues[] = {"[]", "[]", "{}", "\"\"", "null"};

// The same for all values that can stand for each other in a message: text, numbers, lists, objects.
char KindOf(std::string_view value) {
  const char first = value.empty() ? '\0' : value.front();
  return (first >= '0' && first <= '9') || first == '-' ? '0' : first;
}

// A number as the one that is next to it.
std::string NextTo(std::string_view value, Prng& prng) {
  uint64_t number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return std::to_string(prng.Chance(500) ? number + 1 : number - 1);
}

// Instead of a value a telling one, or one that stands elsewhere, as a name, a path or a number of
// somebody else. Often of its kind: a message with a value of another kind is none, and is refused
// before the rest of it counts.
std::string InsteadOf(std::string_view value, std::string_view script,
                      const std::vector<size_t>& places, Prng& prng) {
  constexpr int kTries = 16;
  if (prng.Chance(200)) return std::string(kEmptyValues[prng.Below(std::size(kEmptyValues))]);
  if (KindOf(value) == '0' && prng.Chance(300)) return NextTo(value, prng);
  const bool any_kind = prng.Chance(600);
  std::string_view fresh;
  for (int tries = 0; tries < kTries; ++tries) {
    fresh = prng.Chance(any_kind ? 700 : 500)
                ? kTellingValues[prng.Below(std::size(kTellingValues))]
                : ValueAt(script, places[prng.Below(places.size())]);
    if (fresh != value && (any_kind || KindOf(fresh) == KindOf(value))) break;
  }
  return std::string(fresh);
}

// Replaces one JSON value, or writes another one before it.
void ChangeValue(std::string& script, Prng& prng) {
  const std::vector<size_t> places = ValuesOf(script);
  if (places.empty()) return;
  const size_t at = places[prng.Below(places.size())];
  const std::string value(ValueAt(script, at));
  const std::string fresh = InsteadOf(value, script, places, prng);
  if (prng.Chance(800)) {
    script.replace(at, value.size(), fresh);
  } else {
    script.insert(at, fresh + ",");
  }
}

// Replaces one of a command's bare numbers, as in "offset length"; mostly a first one, which may say
// how much there is of the rest.
void ChangeNumber(std::string& script, Prng& prng) {
  constexpr std::string_view kNumbers[] = {
      "0", "1", "2", "8", "16", "64", "4096", "65536", "1048576", "18446744073709551615"};
  const auto is_digit = [&](size_t i) {
    return i < script.size() && script[i] >= '0' && script[i] <= '9';
  };
  std::vector<size_t> places;
  const bool any = prng.Chance(300);
  for (size_t i = kHeadBytes; i < script.size(); ++i) {
    const bool is_first = i == kHeadBytes || script[i - kHeadBytes - 1] == kSeparator;
    if (is_digit(i) && (is_first || (any && script[i - 1] == ' '))) places.push_back(i);
  }
  if (places.empty()) return;
  const size_t at = places[prng.Below(places.size())];
  size_t end = at;
  while (is_digit(end)) ++end;
  script.replace(at, end - at, kNumbers[prng.Below(std::size(kNumbers))]);
}

// The parts of paths, as in "root/a target" or {"path":"root/a"}: what slashes separate.
struct Part {
  size_t begin, end;
};
std::vector<Part> PartsOfPaths(std::string_view script) {
  std::vector<Part> parts;
  for (size_t at = 0; at < script.size();) {
    const std::string_view one = script.substr(0, script.find(kSeparator, at));
    for (size_t begin = at + kHeadBytes; begin < one.size();) {
      const size_t end = std::min(one.find_first_of("/ \"", begin), one.size());
      const bool is_path = (end < one.size() && one[end] == '/') || one[begin - 1] == '/';
      if (is_path) parts.push_back({begin, end});
      begin = end + 1;
    }
    at = one.size() + 1;
  }
  return parts;
}

// Gives a path another part, one more, or one less.
void ChangePath(std::string& script, Prng& prng) {
  const std::vector<Part> parts = PartsOfPaths(script);
  if (parts.empty()) return;
  const Part at = parts[prng.Below(parts.size())], other = parts[prng.Below(parts.size())];
  const std::string fresh =
      prng.Chance(500) ? ".." : script.substr(other.begin, other.end - other.begin);
  switch (prng.Below(4)) {
    case 0:
      script.replace(at.begin, at.end - at.begin, fresh);
      break;
    case 1:
      script.insert(at.begin, fresh + "/");
      break;
    case 2:
      script.erase(at.begin, at.end - at.begin);
      break;
    case 3:  // its slash
      if (script[at.begin - 1] == '/') script.erase(at.begin - 1, 1);
      break;
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

// Another digit for one command: which stream, or how many of them.
void ChangeDigit(std::string& script, Prng& prng) {
  Commands commands = Split(script);
  std::string& one = commands[prng.Below(commands.size())];
  if (one.size() > 1) one[1] = static_cast<char>('0' + prng.Below(64));
  script = Join(commands);
}

// Repeats, drops, swaps or cuts one command.
void ChangeCommands(std::string& script, Prng& prng) {
  Commands commands = Split(script);
  std::string& one = commands[prng.Below(commands.size())];
  std::string& other = commands[prng.Below(commands.size())];
  switch (prng.Below(4)) {
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
      one.resize(prng.Below(one.size() + 1));
      break;
  }
  script = Join(commands);
}

// Edits of commands as edits of a script, and those that take from another script as ones that take
// from the same.
template <auto kEdit>
void OfCommands(std::string& script, Prng& prng) {
  Commands commands = Split(script);
  kEdit(commands, prng);
  script = Join(commands);
}
template <auto kEdit>
void OfItself(std::string& script, Prng& prng) {
  const Commands same = Split(script);
  Commands commands = same;
  kEdit(commands, same, prng);
  script = Join(commands);
}

// One of the edits above. One that finds nothing of its kind in the script gives way to another.
void Edit(std::string& script, Prng& prng) {
  constexpr auto kWaiting = &OfCommands<&ChangeWaiting>;
  constexpr auto kTarget = &OfItself<&TakeTarget>;
  constexpr auto kBeside = &OfItself<&AskBeside>;
  constexpr auto kMethod = &OfItself<&TakeMethod>;
  // As often as there are lines of it. What calls do to each other has half of them.
  constexpr std::array kEdits = {&ChangeValue,
                                 &ChangeValue,
                                 &ChangeValue,
                                 &ChangeNumber,
                                 &ChangeNumber,
                                 &ChangeNumber,
                                 &ChangeRun,
                                 &ChangePath,
                                 &ChangePath,
                                 &ChangeDigit,
                                 &ChangeCommands,
                                 kWaiting,
                                 kWaiting,
                                 kWaiting,
                                 kWaiting,
                                 kWaiting,
                                 kWaiting,
                                 kTarget,
                                 kTarget,
                                 kBeside,
                                 kBeside,
                                 kMethod,
                                 &OfCommands<&Repeat>,
                                 &OfCommands<&OpenMany>};
  constexpr int kTries = 8;
  const std::string before = script;
  for (int tries = 0; tries < kTries && script == before; ++tries) {
    kEdits[prng.Below(kEdits.size())](script, prng);
  }
}

// Some commands of another script, in their order, somewhere among its own.
void TakeCommands(Commands& commands, const Commands& others, Prng& prng) {
  constexpr size_t kTakenMax = 4;
  const size_t from = prng.Below(others.size());
  const size_t count = std::min(others.size() - from, prng.Below(kTakenMax) + 1);
  const auto begin = others.begin() + static_cast<ptrdiff_t>(from);
  commands.insert(commands.begin() + static_cast<ptrdiff_t>(prng.Below(commands.size() + 1)), begin,
                  begin + static_cast<ptrdiff_t>(count));
}

// One script with something of another.
std::string Cross(std::string_view script, std::string_view other, Prng& prng) {
  constexpr std::array kCrosses = {&TakeCommands, &TakeCommands, &TakeMethod,
                                   &TakeTarget,   &AskBeside,    &AskBeside};
  Commands commands = Split(script);
  kCrosses[prng.Below(kCrosses.size())](commands, Split(other), prng);
  return Join(commands);
}

}  // namespace
}  // namespace lorry::fuzz

namespace {

// What was written by hand: the corpus that the search was started with.
std::vector<std::string>& Written() {
  static std::vector<std::string> written;
  return written;
}

void ReadWritten(const char* argument) {
  std::error_code none;
  for (const auto& file : std::filesystem::directory_iterator(argument, none)) {
    std::ifstream in(file.path(), std::ios::binary);
    Written().emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
}

// libFuzzer mutates most what is newest, and what reaches code that another input reached before
// never. A program that runs some ten scripts a second would hardly be given what is one step from
// those that were written: three of four mutations begin there.
std::string InsteadOf(const uint8_t* data, size_t size, lorry::Prng& prng) {
  if (!Written().empty() && prng.Chance(750)) return Written()[prng.Below(Written().size())];
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace

// Where threads run, how often an edge was taken differs from run to run, and libFuzzer would keep
// every input for that: those that matter would hardly be mutated again. What was written by hand is
// kept, though another script may reach the same code: it may be one step from asking too much of it.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static char no_counters[] = "-use_counters=0";
  static char keep_seeds[] = "-keep_seed=1";
  static char no_entropy[] = "-entropic=0";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  for (const char* argument : arguments) ReadWritten(argument);
  arguments.insert(arguments.begin() + 1, {no_counters, keep_seeds, no_entropy});
  arguments.push_back(nullptr);
  *argc = static_cast<int>(arguments.size()) - 1;
  *argv = arguments.data();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  lorry::Prng prng(seed);
  if (LLVMFuzzerMutate != nullptr && prng.Chance(100)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string script = InsteadOf(data, size, prng);
  for (size_t edits = prng.Below(3) + 1; edits > 0; --edits) {
    lorry::fuzz::Edit(script, prng);
  }
  script.resize(std::min(script.size(), max_size));
  std::memcpy(data, script.data(), script.size());
  return script.size();
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data, size_t size, const uint8_t* other,
                                            size_t other_size, uint8_t* out, size_t max_size,
                                            unsigned int seed) {
  lorry::Prng prng(seed);
  const std::string one = InsteadOf(data, size, prng);
  const std::string two = InsteadOf(other, other_size, prng);
  std::string script = lorry::fuzz::Cross(one, two, prng);
  if (prng.Chance(900)) lorry::fuzz::Edit(script, prng);
  script.resize(std::min(script.size(), max_size));
  std::memcpy(out, script.data(), script.size());
  return script.size();
}
