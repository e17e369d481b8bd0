// Help for people and docs/CLI.md, both written from the verbs' own entries. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/verb.h"

namespace lorry::cli {

std::string Overview(const std::vector<Verb>& verbs);
std::string HelpFor(const Verb& verb);
// The whole of docs/CLI.md.
std::string Markdown(const std::vector<Verb>& verbs);

}  // namespace lorry::cli
