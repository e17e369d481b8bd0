// Completion of the command line for shells, written from the table of verbs, so that it never
// knows other words than the program. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/verb.h"

namespace lorry::cli {

// A script to source: it completes verbs, the options of the verb that was typed and the values of
// options that are a choice; elsewhere names of files.
std::string BashCompletion(const std::vector<Verb>& verbs);
// The same through zsh's bashcompinit.
std::string ZshCompletion(const std::vector<Verb>& verbs);

}  // namespace lorry::cli
