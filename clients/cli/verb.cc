#include "clients/cli/verb.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/base/utf8.h"

namespace lorry::cli {
namespace {

// Bytes that are no UTF-8 may be part of a file's name. Any other word goes into messages, which
// carry UTF-8 alone.
absl::Status CheckText(const std::string& what, const std::string& kind, const std::string& word) {
  if (kind == "DIR" || kind == "FILE" || Utf8(word, word.size()) == word) return absl::OkStatus();
  return Usage(absl::StrCat(what, " is no UTF-8: ", Utf8(word, word.size())));
}

const Option* Find(const std::vector<Option>& options, std::string_view name) {
  const auto it = std::ranges::find(options, name, &Option::name);
  return it == options.end() ? nullptr : &*it;
}

absl::Status CheckValue(const Option& option, const std::string& value) {
  uint64_t number = 0;
  switch (option.kind) {
    case Kind::kSwitch:
      return absl::OkStatus();
    case Kind::kText:
      if (value.empty()) return Usage(absl::StrCat("--", option.name, " is empty"));
      return CheckText(absl::StrCat("--", option.name), option.value, value);
    case Kind::kNumber:
      if (absl::SimpleAtoi(value, &number)) return absl::OkStatus();
      return Usage(absl::StrCat("--", option.name, "=", value, " is no whole number"));
    case Kind::kDuration:
      if (ParseDuration(value).has_value()) return absl::OkStatus();
      return Usage(absl::StrCat("--", option.name, "=", value,
                                " is no duration of a year at most; write 30s, 5m, 2h or 1500ms"));
    case Kind::kFlag:
      if (value.starts_with("--") && value.find_first_not_of('-') == 2) return absl::OkStatus();
      return Usage(absl::StrCat("--", option.name, "=", value,
                                " is no flag; write it with its dashes: --", option.name,
                                "=--name=value"));
    case Kind::kChoice: {
      const std::vector<std::string> choices = absl::StrSplit(option.value, '|');
      if (std::ranges::find(choices, value) != choices.end()) return absl::OkStatus();
      return Usage(absl::StrCat("--", option.name, "=", value, " is none of ", option.value));
    }
  }
  return absl::OkStatus();
}

std::string NameOf(const std::string& word) {
  if (word == "-h") return "help";
  const size_t begin = std::min(word.find_first_not_of('-'), word.size());  // of "--" nothing
  return word.substr(begin, word.find('=') - begin);
}

// Where the first word is that is neither an option nor an option's value; behind the last: nowhere.
size_t VerbAt(const std::vector<std::string>& words) {
  size_t i = 0;
  while (i < words.size() && words[i].size() >= 2 && words[i][0] == '-') {
    const Option* option = Find(GlobalOptions(), NameOf(words[i]));
    const bool apart = words[i].find('=') == std::string::npos;
    i += option != nullptr && option->kind != Kind::kSwitch && apart ? 2 : 1;
  }
  return std::min(i, words.size());
}

// Takes words apart: options by name, the rest in order. The verb is the first of the rest.
class Parser {
 public:
  explicit Parser(const std::vector<Verb>& verbs) : verbs_(verbs) {}

  absl::StatusOr<Parsed> Run(const std::vector<std::string>& words) {
    LORRY_RETURN_IF_ERROR(TakeVerb(words));
    for (size_t i = 0; i < words.size(); ++i) {
      const std::string& word = words[i];
      if (i == verb_at_) continue;
      if (only_positionals_ || word.size() < 2 || word[0] != '-') {
        parsed_.arguments.positionals.push_back(word);
      } else if (word == "--") {
        only_positionals_ = true;
      } else {
        LORRY_RETURN_IF_ERROR(TakeOption(words, i));
      }
    }
    if (parsed_.verb != nullptr && !parsed_.arguments.Has("help")) {
      LORRY_RETURN_IF_ERROR(CheckPositionals());
    }
    return std::move(parsed_);
  }

 private:
  absl::Status TakeVerb(const std::vector<std::string>& words) {
    for (const Option& option : GlobalOptions()) Remember(option);
    verb_at_ = VerbAt(words);
    if (verb_at_ == words.size()) return absl::OkStatus();
    parsed_.verb = FindVerb(verbs_, words);
    if (parsed_.verb == nullptr) {
      std::vector<std::string> names;
      for (const Verb& known : verbs_) names.push_back(known.name);
      return Usage(absl::StrCat("there is no verb \"", words[verb_at_], "\"",
                                DidYouMean(words[verb_at_], names)));
    }
    for (const Option& option : parsed_.verb->options) Remember(option);
    return absl::OkStatus();
  }

  void Remember(const Option& option) {
    if (!option.fallback.empty()) parsed_.arguments.fallbacks[option.name] = option.fallback;
  }

  const Option* Known(const std::string& name) const {
    const Option* own = parsed_.verb == nullptr ? nullptr : Find(parsed_.verb->options, name);
    return own != nullptr ? own : Find(GlobalOptions(), name);
  }

  absl::Status TakeOption(const std::vector<std::string>& words, size_t& i) {
    const std::string& word = words[i];
    const std::string name = NameOf(word);
    const Option* option = Known(name);
    if (option == nullptr || (!word.starts_with("--") && word != "-h")) {
      std::vector<std::string> names;
      for (const Option& known : GlobalOptions()) names.push_back("--" + known.name);
      if (parsed_.verb != nullptr) {
        for (const Option& known : parsed_.verb->options) names.push_back("--" + known.name);
      }
      return Usage(absl::StrCat("there is no option ", word, DidYouMean("--" + name, names)));
    }
    const size_t equals = word.find('=');
    std::string value;
    if (option->kind == Kind::kSwitch) {
      if (equals != std::string::npos) return Usage(absl::StrCat("--", name, " takes no value"));
    } else if (equals != std::string::npos) {
      value = word.substr(equals + 1);
    } else if (++i < words.size() && (option->kind == Kind::kFlag || !words[i].starts_with("--"))) {
      value = words[i];
    } else {
      return Usage(absl::StrCat("--", name, " needs a value: ", option->value));
    }
    LORRY_RETURN_IF_ERROR(CheckValue(*option, value));
    std::vector<std::string>& values = parsed_.arguments.options[name];
    if (!values.empty() && !option->repeated && option->kind != Kind::kSwitch) {
      return Usage(absl::StrCat("--", name, " is given twice"));
    }
    values.push_back(std::move(value));
    return absl::OkStatus();
  }

  absl::Status CheckPositionals() const {
    const std::vector<Positional>& wanted = parsed_.verb->positionals;
    const std::vector<std::string>& given = parsed_.arguments.positionals;
    for (size_t i = 0; i < given.size() && !wanted.empty(); ++i) {
      const std::string& name = wanted[std::min(i, wanted.size() - 1)].name;
      LORRY_RETURN_IF_ERROR(CheckText(name, name, given[i]));
    }
    for (size_t i = given.size(); i < wanted.size(); ++i) {
      if (wanted[i].optional) continue;
      return Usage(
          absl::StrCat(parsed_.verb->name, " needs ", wanted[i].name, ": ", wanted[i].help));
    }
    const bool endless = !wanted.empty() && wanted.back().repeated;
    if (given.size() > wanted.size() && !endless) {
      return Usage(
          absl::StrCat(parsed_.verb->name, " has no use for \"", given[wanted.size()], "\"",
                       wanted.empty() && Find(parsed_.verb->options, "adapter") != nullptr
                           ? absl::StrCat("; did you mean --adapter ", given[wanted.size()], "?")
                           : ""));
    }
    for (const Option& option : parsed_.verb->options) {
      if (!option.required || parsed_.arguments.Has(option.name)) continue;
      return Usage(absl::StrCat(parsed_.verb->name, " needs --", option.name, " ", option.value));
    }
    return absl::OkStatus();
  }

  const std::vector<Verb>& verbs_;
  Parsed parsed_;
  size_t verb_at_ = static_cast<size_t>(-1);
  bool only_positionals_ = false;
};

}  // namespace

const Verb* FindVerb(const std::vector<Verb>& verbs, const std::vector<std::string>& words) {
  const size_t at = VerbAt(words);
  if (at == words.size()) return nullptr;
  const auto verb = std::ranges::find(verbs, words[at], &Verb::name);
  return verb == verbs.end() ? nullptr : &*verb;
}

absl::Status Usage(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "USAGE", message);
}

std::optional<int64_t> ParseDuration(std::string_view text) {
  static constexpr std::pair<std::string_view, int64_t> kUnits[] = {
      {"ms", 1}, {"s", 1'000}, {"m", 60'000}, {"h", 3'600'000}, {"", 1'000}};
  // A year: beyond it a number is a slip, and sums of deadlines stay far from overflow.
  constexpr int64_t kMsMax = int64_t{365} * 24 * 3'600'000;
  for (const auto& [unit, ms] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const std::string_view digits = text.substr(0, text.size() - unit.size());
    int64_t number = 0;
    if (digits.find_first_not_of("0123456789") != digits.npos) continue;  // no signs, no spaces
    if (!absl::SimpleAtoi(ToAbsl(digits), &number)) continue;
    if (number > kMsMax / ms) return std::nullopt;
    return number * ms;
  }
  return std::nullopt;
}

bool Arguments::Has(std::string_view option) const { return options.contains(option); }

std::string Arguments::Text(std::string_view option) const {
  if (const auto it = options.find(option); it != options.end()) return it->second.back();
  const auto it = fallbacks.find(option);
  return it == fallbacks.end() ? "" : it->second;
}

std::vector<std::string> Arguments::Texts(std::string_view option) const {
  const auto it = options.find(option);
  return it == options.end() ? std::vector<std::string>() : it->second;
}

uint64_t Arguments::Number(std::string_view option) const {
  uint64_t number = 0;
  return absl::SimpleAtoi(Text(option), &number) ? number : 0;
}

int64_t Arguments::Milliseconds(std::string_view option) const {
  return ParseDuration(Text(option)).value_or(0);
}

absl::StatusOr<Parsed> Parse(const std::vector<Verb>& verbs,
                             const std::vector<std::string>& words) {
  return Parser(verbs).Run(words);
}

}  // namespace lorry::cli
