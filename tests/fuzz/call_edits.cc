#include "tests/fuzz/call_edits.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tests/fuzz/json_text.h"
#include "tests/fuzz/script.h"

namespace lorry::fuzz {
namespace {

// The first bytes of commands: calls that are waited for or not, streams and what is said on them.
constexpr std::string_view kCalls = "CA";
constexpr std::string_view kAsks = "CAM";
constexpr std::string_view kStreams = "Oo";
// None of those that wait, which cost as much as a hundred calls.
constexpr std::string_view kRepeated = "CAMO";
constexpr size_t kRepeatsLog2Max = 6;
constexpr size_t kManyLog2Max = 6;  // more than a fuzzed server has places

// Where the commands are whose letter is one of these.
std::vector<size_t> PlacesOf(const Commands& commands, std::string_view letters) {
  std::vector<size_t> places;
  for (size_t i = 0; i < commands.size(); ++i) {
    const std::string& one = commands[i];
    const bool is_one = one.size() > kHeadBytes && letters.find(one[0]) != std::string_view::npos;
    if (is_one) places.push_back(i);
  }
  return places;
}

std::optional<size_t> OneOf(const Commands& commands, std::string_view letters, Prng& prng) {
  const std::vector<size_t> places = PlacesOf(commands, letters);
  if (places.empty()) return std::nullopt;
  return places[prng.Below(places.size())];
}

// Up to the space before its message.
std::string_view MethodOf(std::string_view call) {
  call.remove_prefix(std::min(kHeadBytes, call.size()));
  return call.substr(0, call.find(' '));
}

// Writes into `call` what `other` says in fields of the same names.
void AimAt(std::string& call, const std::string& other) {
  for (const Field& aim : FieldsOf(other)) {
    for (const Field& field : FieldsOf(call)) {
      if (field.name != aim.name) continue;
      call.replace(field.begin, field.value.size(), aim.value);
      break;  // what follows has moved
    }
  }
}

// The variables are what answers said: any of them can stand for any other.
bool IsVariable(std::string_view value) { return value.starts_with("\"$"); }

}  // namespace

Commands Split(std::string_view script) {
  Commands commands(1);
  for (const char c : script) {
    if (c == kSeparator) {
      commands.emplace_back();
    } else {
      commands.back() += c;
    }
  }
  return commands;
}

std::string Join(const Commands& commands) {
  std::string script;
  for (const std::string& command : commands) {
    if (command.empty()) continue;
    if (!script.empty()) script += kSeparator;
    script += command;
  }
  return script;
}

void ChangeWaiting(Commands& commands, Prng& prng) {
  const std::optional<size_t> one = OneOf(commands, kCalls, prng);
  if (!one.has_value()) return;
  const char how = commands[*one].front() == 'C' ? 'A' : 'C';
  if (prng.Chance(300)) {
    for (const size_t each : PlacesOf(commands, kCalls)) commands[each].front() = how;
  } else {
    commands[*one].front() = how;
  }
}

void TakeMethod(Commands& commands, const Commands& others, Prng& prng) {
  const std::optional<size_t> call = OneOf(commands, kCalls, prng);
  const std::optional<size_t> other = OneOf(others, kCalls, prng);
  if (!call.has_value() || !other.has_value()) return;
  const std::string method(MethodOf(others[*other]));
  commands[*call].replace(kHeadBytes, MethodOf(commands[*call]).size(), method);
}

void TakeTarget(Commands& commands, const Commands& others, Prng& prng) {
  const std::optional<size_t> ask = OneOf(commands, kAsks, prng);
  if (!ask.has_value()) return;
  const std::vector<Field> fields = FieldsOf(commands[*ask]);
  if (fields.empty()) return;
  const Field& field = fields[prng.Below(fields.size())];
  std::vector<std::string> fresh;
  for (const size_t other : PlacesOf(others, kAsks)) {
    for (const Field& candidate : FieldsOf(others[other])) {
      const bool fits =
          candidate.name == field.name || (IsVariable(candidate.value) && IsVariable(field.value));
      if (fits && candidate.value != field.value) fresh.emplace_back(candidate.value);
    }
  }
  if (fresh.empty()) return;
  commands[*ask].replace(field.begin, field.value.size(), fresh[prng.Below(fresh.size())]);
}

void AskBeside(Commands& commands, const Commands& others, Prng& prng) {
  const std::optional<size_t> beside = OneOf(commands, kCalls, prng);
  const std::optional<size_t> other = OneOf(others, kCalls, prng);
  if (!beside.has_value() || !other.has_value()) return;
  std::string fresh = others[*other];
  if (prng.Chance(700)) AimAt(fresh, commands[*beside]);
  if (prng.Chance(300)) fresh.front() = fresh.front() == 'C' ? 'A' : 'C';
  const size_t at = *beside + (prng.Chance(700) ? 1 : 0);
  commands.insert(commands.begin() + static_cast<ptrdiff_t>(at), std::move(fresh));
}

void Repeat(Commands& commands, Prng& prng) {
  const std::optional<size_t> at = OneOf(commands, kRepeated, prng);
  if (!at.has_value()) return;
  const size_t times = size_t{1} << prng.Below(kRepeatsLog2Max + 1);
  const std::string one = commands[*at];
  commands.insert(commands.begin() + static_cast<ptrdiff_t>(*at), times, one);
}

void OpenMany(Commands& commands, Prng& prng) {
  const std::optional<size_t> stream = OneOf(commands, kStreams, prng);
  if (!stream.has_value()) return;
  std::string many = "o";
  many += static_cast<char>('0' + prng.Below(kManyLog2Max + 1));
  many += MethodOf(commands[*stream]);
  commands.insert(commands.begin() + static_cast<ptrdiff_t>(*stream), std::move(many));
}

}  // namespace lorry::fuzz
