#include "clients/cli/help.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "clients/cli/output.h"

namespace lorry::cli {
namespace {

// Lines of help fit a terminal of 80 columns and a little more.
constexpr size_t kColumns = 96;

// `text` broken between words, each line after `indent` spaces.
std::string Wrap(const std::string& text, size_t indent) {
  std::string out(indent, ' ');
  size_t column = indent;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column > indent && column + 1 + Width(word) > kColumns) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    }
    if (column > indent) out += ' ', ++column;
    out += word;
    column += Width(word);
  }
  return out + "\n";
}

std::string Spelled(const Option& option) {
  if (option.kind == Kind::kSwitch) return absl::StrCat("--", option.name);
  return absl::StrCat("--", option.name, " ", option.value);
}

std::string Notes(const Option& option) {
  std::string notes = option.help;
  if (!option.fallback.empty()) absl::StrAppend(&notes, "; default ", option.fallback);
  if (option.repeated) absl::StrAppend(&notes, "; may be repeated");
  if (option.required) absl::StrAppend(&notes, "; required");
  return notes;
}

std::string Synopsis(const Verb& verb) {
  std::vector<std::string> parts = {"lorry", verb.name};
  for (const Positional& positional : verb.positionals) {
    const std::string dots = positional.repeated ? "..." : "";
    parts.push_back(positional.optional ? absl::StrCat("[", positional.name, dots, "]")
                                        : absl::StrCat(positional.name, dots));
  }
  for (const Option& option : verb.options) {
    if (option.required) parts.push_back(Spelled(option));
  }
  const bool more = std::ranges::any_of(verb.options, [](const Option& o) { return !o.required; });
  if (more) parts.push_back("[options]");
  return absl::StrJoin(parts, " ");
}

std::string OptionLines(const std::vector<Option>& options) {
  size_t width = 0;
  for (const Option& option : options) width = std::max(width, Spelled(option).size());
  // A long spelling gets a line of its own rather than pushing every help to the right.
  width = std::min<size_t>(width, 28);
  std::string out;
  for (const Option& option : options) {
    const std::string spelled = Spelled(option);
    const std::string notes = Wrap(Notes(option), width + 4);
    if (spelled.size() > width) {
      absl::StrAppend(&out, "  ", spelled, "\n", notes);
    } else {
      absl::StrAppend(&out, "  ", spelled, notes.substr(spelled.size() + 2));
    }
  }
  return out;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"<", "&lt;"}});
}

std::string OptionTable(const std::vector<Option>& options) {
  std::string out = "| option | |\n|---|---|\n";
  for (const Option& option : options) {
    absl::StrAppend(&out, "| `", absl::StrReplaceAll(Spelled(option), {{"|", "\\|"}}), "` | ",
                    Escaped(Notes(option)), " |\n");
  }
  return out;
}

constexpr char kStatuses[] =
    "| exit status | means |\n|---|---|\n"
    "| 0 | done |\n"
    "| 1 | refused, failed, or `doctor` found something broken |\n"
    "| 2 | the command line itself is wrong |\n"
    "| 3 | a service does not answer |\n";

}  // namespace

std::string Overview(const std::vector<Verb>& verbs) {
  std::string out =
      "lorry: LoRA adapters from trainers to inference engines\n\n"
      "usage: lorry VERB [arguments] [options]\n\n";
  size_t width = 0;
  for (const Verb& verb : verbs) width = std::max(width, verb.name.size());
  for (const Verb& verb : verbs) {
    absl::StrAppend(&out, "  ", verb.name, std::string(width - verb.name.size() + 2, ' '),
                    verb.summary, "\n");
  }
  absl::StrAppend(
      &out, "\noptions of every verb:\n", OptionLines(GlobalOptions()),
      "\n`lorry help VERB` says more. Exit status: 0 done, 1 refused or failed, 2 wrong "
      "command line,\n3 a service does not answer.\n");
  return out;
}

std::string HelpFor(const Verb& verb) {
  std::string out =
      absl::StrCat("lorry ", verb.name, ": ", verb.summary, "\n\nusage: ", Synopsis(verb), "\n");
  if (!verb.details.empty()) absl::StrAppend(&out, "\n", Wrap(verb.details, 0));
  if (!verb.positionals.empty()) {
    out += "\n";
    for (const Positional& positional : verb.positionals) {
      absl::StrAppend(&out, "  ", positional.name, "  ", positional.help, "\n");
    }
  }
  if (!verb.options.empty()) absl::StrAppend(&out, "\noptions:\n", OptionLines(verb.options));
  if (!verb.settings.empty()) out += "\nfields:\n";
  for (const Setting& setting : verb.settings) {
    absl::StrAppend(&out, "  ", setting.spelled, "\n", Wrap(setting.help, 6));
  }
  if (!verb.examples.empty()) out += "\nexamples:\n";
  for (const std::string& example : verb.examples) absl::StrAppend(&out, "  ", example, "\n");
  return out;
}

std::string Markdown(const std::vector<Verb>& verbs) {
  std::string out =
      "# The command line\n\n"
      "Written by `lorry help --markdown` from the program's own table of verbs; a test compares "
      "the two.\n\n"
      "Tables are for people. `--json` prints one JSON object a line: one for each thing that a "
      "list names or a watch tells,\none in all where there is one answer; messages have the field "
      "names of the `.proto` files. An error is one line on\nstderr, `lorry: REASON: message`, and "
      "a second line with what to do where [ERRORS.md](ERRORS.md) says it, or with\n`--json` one "
      "object {reason, message, remedy}. `lorry bench-sync` leaves the remedy out (empty in JSON): "
      "look its\nreasons up in ERRORS.md, which lists all of them.\n\n";
  absl::StrAppend(&out, kStatuses, "\n## Options of every verb\n\n", OptionTable(GlobalOptions()));
  for (const Verb& verb : verbs) {
    absl::StrAppend(&out, "\n## ", verb.name, "\n\n", verb.summary, ".\n\n```\n", Synopsis(verb),
                    "\n```\n");
    if (!verb.details.empty()) absl::StrAppend(&out, "\n", verb.details, "\n");
    if (!verb.positionals.empty()) out += "\n";
    for (const Positional& positional : verb.positionals) {
      absl::StrAppend(&out, "- `", positional.name, "`: ", Escaped(positional.help), "\n");
    }
    if (!verb.options.empty()) absl::StrAppend(&out, "\n", OptionTable(verb.options));
    if (!verb.settings.empty()) out += "\n| field | |\n|---|---|\n";
    for (const Setting& setting : verb.settings) {
      absl::StrAppend(&out, "| `", absl::StrReplaceAll(setting.spelled, {{"|", "\\|"}}), "` | ",
                      Escaped(setting.help), " |\n");
    }
    if (verb.examples.empty()) continue;
    absl::StrAppend(&out, "\n```\n", absl::StrJoin(verb.examples, "\n"), "\n```\n");
  }
  return out;
}

}  // namespace lorry::cli
