// What the command line can do, as data: each verb is one entry that names its arguments, options,
// help and function. Parsing, `lorry help` and docs/CLI.md all read the same entries. Plain values;
// main's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::cli {

// kFlag: a flag of another program, which begins with -- itself.
enum class Kind { kSwitch, kText, kNumber, kDuration, kChoice, kFlag };

struct Option {
  std::string name;   // "adapter" of --adapter
  std::string value;  // how help names the value: "NAME"; for kChoice "a|b|c"; empty for kSwitch
  std::string help;
  Kind kind = Kind::kText;
  bool required = false;
  bool repeated = false;
  std::string fallback = {};  // what counts where it is not given; as it is written
};

struct Positional {
  std::string name;  // "DIR"
  std::string help;
  bool optional = false;
  bool repeated = false;  // the last one only
};

// What one command line said. Every value was checked against its option's kind.
class Arguments {
 public:
  bool Has(std::string_view option) const;
  std::string Text(std::string_view option) const;  // given, else the fallback
  std::vector<std::string> Texts(std::string_view option) const;
  uint64_t Number(std::string_view option) const;
  int64_t Milliseconds(std::string_view option) const;

  // The i-th positional argument, empty when it was left out.
  std::string At(size_t i) const { return i < positionals.size() ? positionals[i] : ""; }

  std::vector<std::string> positionals;
  std::map<std::string, std::vector<std::string>, std::less<>> options;
  std::map<std::string, std::string, std::less<>> fallbacks;
};

class Context;  // context.h

// What a FIELD=VALUE of an option may say.
struct Setting {
  std::string spelled;  // "keep=N|all"
  std::string help;
};

struct Verb {
  std::string name;
  std::string summary;  // one line without a full stop
  std::string details = {};
  std::vector<Positional> positionals = {};
  std::vector<Option> options = {};
  std::vector<Setting> settings = {};
  std::vector<std::string> examples = {};
  // The exit status, or an error that main prints.
  std::function<absl::StatusOr<int>(Context&, const Arguments&)> run = {};
};

// --pool of verbs that take `latest` for a version.
Option PoolOfLatest();

// Options that every verb takes, before or after its name.
const std::vector<Option>& GlobalOptions();

struct Parsed {
  const Verb* verb = nullptr;  // nullptr: none was named
  Arguments arguments;
};

// INVALID_ARGUMENT USAGE says what is wrong and, for a misspelled word, what may have been meant.
absl::StatusOr<Parsed> Parse(const std::vector<Verb>& verbs, const std::vector<std::string>& words);

// The verb that the words name; null: none, or none that there is.
const Verb* FindVerb(const std::vector<Verb>& verbs, const std::vector<std::string>& words);

// "90", "90s", "1500ms", "5m", "2h" in ms; a plain number counts seconds.
std::optional<int64_t> ParseDuration(std::string_view text);

absl::Status Usage(const std::string& message);

}  // namespace lorry::cli
