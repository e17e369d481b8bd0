// Mutations that know what a script is made of: commands, and methods, numbers, paths and JSON values
// inside of them; and crosses that take whole commands, or the method of one. Some mutations are
// left to libFuzzer.
#include <algorithm>
#include <array>
#include <charconv>
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

constexpr size_t kHeadBytes = 2;  // of a command: its letter and its digit

constexpr std::string_view kTellingValues[] = {
    "[]", "[]", "{}", "\"\"", "null", "true", "false", "0", "1", "-1", "2", "64", "65", "4096",
    "18446744073709551616", "1e99", "[[]]", "[null]", "[\"\"]", "\"a\"", "[\"a\",\"b\"]",
    "[\"a\",\"a\"]", "[{}]", "[1,2,3]", "{\"a\":1}", "0.5", "\"..\"", "\"../../a\"",
    // 2^16 and 2^20 letters.
    "\"\x01p\"", "\"\x01t\""};

// What programs forget most often.
constexpr std::string_view kEmptyValues[] = {"[]", "[]", "{}", "\"\"", "null"};

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

std::string_view ValueAt(std::string_view script, size_t at) {
  return script.substr(at, EndOfValue(script, at) - at);
}

// Where values begin. The name of a field is none.
std::vector<size_t> ValuesOf(std::string_view script) {
  std::vector<size_t> places;
  for (size_t i = 0; i + 1 < script.size(); ++i) {
    if (script[i] != ':' && script[i] != '[' && script[i] != ',') continue;
    const size_t end = script[i + 1] == '"' ? EndOfValue(script, i + 1) : script.size();
    const bool is_name = end < script.size() && script[end] == ':';
    if (!is_name) places.push_back(i + 1);
  }
  return places;
}

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

std::vector<std::string> Split(std::string_view script) {
  std::vector<std::string> commands(1);
  for (const char c : script) {
    if (c == kSeparator) {
      commands.emplace_back();
    } else {
      commands.back() += c;
    }
  }
  return commands;
}

std::string Join(const std::vector<std::string>& commands) {
  std::string script;
  for (const std::string& command : commands) {
    if (command.empty()) continue;
    if (!script.empty()) script += kSeparator;
    script += command;
  }
  return script;
}

// The commands that are calls of a method, "C0GetUpload {...}".
std::vector<std::string*> Calls(std::vector<std::string>& commands) {
  std::vector<std::string*> calls;
  for (std::string& command : commands) {
    if (command.starts_with('C') || command.starts_with('A')) calls.push_back(&command);
  }
  return calls;
}

std::string* OneCall(std::vector<std::string>& commands, Prng& prng) {
  const std::vector<std::string*> calls = Calls(commands);
  return calls.empty() ? nullptr : calls[prng.Below(calls.size())];
}

// Lets one call, or sometimes all of them, be waited for or not: what was in order becomes a race.
void ChangeWaiting(std::string& script, Prng& prng) {
  std::vector<std::string> commands = Split(script);
  std::string* const one = OneCall(commands, prng);
  if (one == nullptr) return;
  const char how = one->front() == 'C' ? 'A' : 'C';
  for (std::string* call : prng.Chance(300) ? Calls(commands) : std::vector{one}) {
    call->front() = how;
  }
  script = Join(commands);
}

// Up to the space before its message.
std::string_view MethodOf(std::string_view call) {
  call.remove_prefix(std::min(kHeadBytes, call.size()));
  return call.substr(0, call.find(' '));
}

// Asks what one call asks of the method of one of `others`: methods take much the same fields.
void TakeMethod(std::vector<std::string>& commands, std::vector<std::string> others, Prng& prng) {
  std::string* const call = OneCall(commands, prng);
  const std::string* const other = OneCall(others, prng);
  if (call == nullptr || other == nullptr || call->size() < kHeadBytes) return;
  const std::string_view method = MethodOf(*other);
  call->replace(kHeadBytes, MethodOf(*call).size(), method);
}

// Another digit for one command: which stream, or how many of them.
void ChangeDigit(std::string& script, Prng& prng) {
  std::vector<std::string> commands = Split(script);
  std::string& one = commands[prng.Below(commands.size())];
  if (one.size() > 1) one[1] = static_cast<char>('0' + prng.Below(64));
  script = Join(commands);
}

// Repeats, drops, swaps or cuts one command.
void ChangeCommands(std::string& script, Prng& prng) {
  std::vector<std::string> commands = Split(script);
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

// One of the edits above. One that finds nothing of its kind in the script gives way to another.
void Edit(std::string& script, Prng& prng) {
  constexpr std::array kEdits = {&ChangeValue,   &ChangeValue,   &ChangeValue,  &ChangeCommands,
                                 &ChangeNumber,  &ChangeNumber,  &ChangeNumber, &ChangeWaiting,
                                 &ChangeWaiting, &ChangeWaiting, &ChangeRun,    &ChangePath,
                                 &ChangePath,    &ChangeDigit};
  constexpr int kTries = 8;
  const std::string before = script;
  for (int tries = 0; tries < kTries && script == before; ++tries) {
    kEdits[prng.Below(kEdits.size())](script, prng);
  }
}

// Some commands of another script, in their order, somewhere among its own; or a method of it.
std::string Cross(std::string_view script, std::string_view other, Prng& prng) {
  constexpr size_t kTakenMax = 4;
  std::vector<std::string> commands = Split(script);
  const std::vector<std::string> others = Split(other);
  if (prng.Chance(300)) {
    TakeMethod(commands, others, prng);
    return Join(commands);
  }
  const size_t from = prng.Below(others.size());
  const size_t count = std::min(others.size() - from, prng.Below(kTakenMax) + 1);
  const auto begin = others.begin() + static_cast<ptrdiff_t>(from);
  commands.insert(commands.begin() + static_cast<ptrdiff_t>(prng.Below(commands.size() + 1)), begin,
                  begin + static_cast<ptrdiff_t>(count));
  return Join(commands);
}

}  // namespace
}  // namespace lorry::fuzz

// Where threads run, how often an edge was taken differs from run to run, and libFuzzer would keep
// every input for that: those that matter would hardly be mutated again. What was written by hand is
// kept, though another script may reach the same code: it may be one step from asking too much of it.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static char no_counters[] = "-use_counters=0";
  static char keep_seeds[] = "-keep_seed=1";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, {no_counters, keep_seeds});
  arguments.push_back(nullptr);
  *argc = static_cast<int>(arguments.size()) - 1;
  *argv = arguments.data();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  lorry::Prng prng(seed);
  if (LLVMFuzzerMutate != nullptr && prng.Chance(200)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string script(reinterpret_cast<const char*>(data), size);
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
  std::string script = lorry::fuzz::Cross({reinterpret_cast<const char*>(data), size},
                                          {reinterpret_cast<const char*>(other), other_size}, prng);
  if (prng.Chance(500)) lorry::fuzz::Edit(script, prng);
  script.resize(std::min(script.size(), max_size));
  std::memcpy(out, script.data(), script.size());
  return script.size();
}
