// lorry: the command line. Finds the verb, runs it, prints what went wrong.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "clients/cli/context.h"
#include "clients/cli/help.h"
#include "clients/cli/verbs.h"
#include "lib/runtime/signals.h"

namespace {

namespace cli = lorry::cli;

int Run(const std::vector<std::string>& words, bool json, bool colour) {
  const std::vector<cli::Verb> verbs = cli::AllVerbs();
  if (words == std::vector<std::string>{"--version"}) return cli::PrintVersion();

  const absl::StatusOr<cli::Parsed> parsed = cli::Parse(verbs, words);
  if (!parsed.ok()) return cli::Report(parsed.status(), cli::FindVerb(verbs, words), json, colour);
  const cli::Arguments& arguments = parsed->arguments;
  cli::Context context(verbs, arguments);
  if (parsed->verb == nullptr) {
    context.Print(cli::Overview(verbs));
    return arguments.Has("help") ? cli::kOk : cli::kUsage;
  }
  if (arguments.Has("help")) {
    context.Print(cli::HelpFor(*parsed->verb));
    return cli::kOk;
  }
  const absl::StatusOr<int> exit_status = parsed->verb->run(context, arguments);
  if (exit_status.ok()) return *exit_status;
  return cli::Report(context.Explain(exit_status.status()), parsed->verb, json, colour);
}

}  // namespace

int main(int argc, char** argv) {
  lorry::runtime::TakeHangUpBack();
  const std::vector<std::string> words(argv + 1, argv + argc);
  // What was said stays said when an error follows, or Ctrl-C ends the wait.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  // What the libraries warn of goes where errors go, and never among the JSON.
  spdlog::set_default_logger(spdlog::stderr_color_mt("lorry"));
  spdlog::set_pattern("%n: %^%l%$: %v");
  const auto has = [&](const char* word) { return std::ranges::find(words, word) != words.end(); };
  const bool json = has("--json");  // also where the words make no sense otherwise
  const bool colour =
      ::isatty(STDERR_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr && !has("--no-colour");
  const int exit_status = Run(words, json, colour);
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_status;
  return cli::Report(absl::DataLossError(
                         absl::StrCat("standard output cannot be written: ", std::strerror(errno))),
                     nullptr, json, colour);
}
