#include "clients/cli/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace lorry::cli {
namespace {

std::string Spellings(const std::vector<Option>& options) {
  return absl::StrJoin(options, " ", [](std::string* out, const Option& option) {
    absl::StrAppend(out, "--", option.name);
  });
}

// The words after an option that is a choice.
void AddChoices(const std::string& verb, const std::vector<Option>& options, std::string& out) {
  for (const Option& option : options) {
    if (option.kind != Kind::kChoice) continue;
    absl::StrAppend(&out, "    ", verb, ":--", option.name, ") words=\"",
                    absl::StrReplaceAll(option.value, {{"|", " "}}), "\" ;;\n");
  }
}

}  // namespace

std::string BashCompletion(const std::vector<Verb>& verbs) {
  const std::string names = absl::StrJoin(
      verbs, " ", [](std::string* out, const Verb& verb) { absl::StrAppend(out, verb.name); });
  std::string out = absl::StrCat(
      "# bash completion of lorry: source <(lorry completion bash)\n"
      "_lorry() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb= words= i\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \" ",
      names,
      " \" in *\" ${COMP_WORDS[i]} \"*) verb=${COMP_WORDS[i]}; break ;; esac\n"
      "  done\n"
      "  case $verb:$before in\n");
  AddChoices("*", GlobalOptions(), out);
  for (const Verb& verb : verbs) AddChoices(verb.name, verb.options, out);
  absl::StrAppend(&out, "    help:*) words=\"", names, "\" ;;\n", "  esac\n",
                  "  if [ -z \"$words\" ]; then\n", "    case $verb in\n", "      \"\") words=\"",
                  names, "\" ;;\n");
  for (const Verb& verb : verbs) {
    if (verb.options.empty()) continue;
    absl::StrAppend(&out, "      ", verb.name, ") words=\"", Spellings(verb.options), "\" ;;\n");
  }
  absl::StrAppend(&out, "    esac\n", "    case $word in -*) words=\"$words ",
                  Spellings(GlobalOptions()), "\" ;; esac\n", "  fi\n",
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n", "}\n",
                  // Where none of these words fits, names of files are completed.
                  "complete -o default -F _lorry lorry\n");
  return out;
}

std::string ZshCompletion(const std::vector<Verb>& verbs) {
  return absl::StrCat("# zsh completion of lorry: source <(lorry completion zsh)\n",
                      "autoload -Uz compinit bashcompinit\n", "compinit -u\n", "bashcompinit\n",
                      BashCompletion(verbs));
}

}  // namespace lorry::cli
