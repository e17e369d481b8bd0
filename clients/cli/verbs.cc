// The table of all verbs, the options that they share, and the verbs that need no service.
#include "clients/cli/verbs.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "clients/cli/completion.h"
#include "clients/cli/context.h"
#include "clients/cli/help.h"
#include "lib/transfer/ucx/ucx_transport.h"

namespace lorry::cli {
namespace {

absl::StatusOr<int> Version(Context& context, const Arguments&) {
  if (!context.json()) return PrintVersion();
  context.Print(absl::StrCat("{\"lorry\":\"", LORRY_VERSION, "\",\"ucx\":\"",
                             transfer::UcxVersion(), "\"}\n"));
  return kOk;
}

absl::StatusOr<int> Help(Context& context, const Arguments& arguments) {
  const std::string name = arguments.At(0);
  if (arguments.Has("markdown")) {
    context.Print(Markdown(context.verbs()));
    return kOk;
  }
  if (name.empty()) {
    context.Print(Overview(context.verbs()));
    return kOk;
  }
  const auto verb = std::ranges::find(context.verbs(), name, &Verb::name);
  if (verb == context.verbs().end()) {
    return Usage(absl::StrCat("there is no verb \"", name, "\""));
  }
  context.Print(HelpFor(*verb));
  return kOk;
}

absl::StatusOr<int> Completion(Context& context, const Arguments& arguments) {
  const std::string shell = arguments.At(0);
  if (shell != "bash" && shell != "zsh") {
    return Usage(absl::StrCat("no completion for \"", shell, "\"; write bash or zsh"));
  }
  context.Print(shell == "bash" ? BashCompletion(context.verbs()) : ZshCompletion(context.verbs()));
  return kOk;
}

std::vector<Verb> HelpVerbs() {
  return {{.name = "version", .summary = "Prints the versions of Lorry and UCX", .run = Version},
          {.name = "help",
           .summary = "Explains a verb",
           .positionals = {{"VERB", "which one", true}},
           .options = {{.name = "markdown",
                        .help = "all verbs, as docs/CLI.md",
                        .kind = Kind::kSwitch}},
           .run = Help},
          {.name = "completion",
           .summary = "Prints what completes these words in a shell",
           .details = "For the shell at hand: source <(lorry completion bash); for good: lorry "
                      "completion bash > /etc/bash_completion.d/lorry.",
           .positionals = {{"SHELL", "bash or zsh"}},
           .examples = {"lorry completion zsh"},
           .run = Completion}};
}

}  // namespace

int PrintVersion() {
  std::printf("lorry %s, %s\n", LORRY_VERSION, transfer::UcxVersion().c_str());
  return kOk;
}

std::vector<Verb> AllVerbs() {
  std::vector<Verb> verbs;
  for (auto part : {LocalVerbs(), DetachVerbs(), BenchVerbs(), PublishVerbs(), FleetVerbs(),
                    AdapterVerbs(), LeaseVerbs(), MoverVerbs(), HelpVerbs()}) {
    std::ranges::move(part, std::back_inserter(verbs));
  }
  return verbs;
}

Option PoolOfLatest() {
  return {.name = "pool",
          .value = "NAME",
          .help = "whose latest is meant; needed where several pools follow what is published"};
}

const std::vector<Option>& GlobalOptions() {
  static const auto* options = new std::vector<Option>{
      {.name = "store",
       .value = "HOST:PORT",
       .help = "the adapter-store; default $LORRY_STORE, else what `lorry up` runs"},
      {.name = "orchestrator",
       .value = "HOST:PORT",
       .help = "the sync-orchestrator; default $LORRY_ORCHESTRATOR, else what `lorry up` runs"},
      {.name = "token-file",
       .value = "FILE",
       .help =
           "holds the bearer token to show; default $LORRY_TOKEN itself, else $LORRY_TOKEN_FILE, "
           "else that of `lorry up`"},
      {.name = "tls-ca",
       .value = "FILE",
       .help = "PEM of the authority to trust, which turns TLS on; default $LORRY_CA_FILE"},
      {.name = "tls-cert",
       .value = "FILE",
       .help = "PEM of the client's certificate (mTLS); default $LORRY_CERT_FILE"},
      {.name = "tls-key", .value = "FILE", .help = "PEM of its key; default $LORRY_KEY_FILE"},
      {.name = "timeout",
       .value = "DURATION",
       .help = "how long a call, a transfer or a wait may take: 30s, 5m; default 10s a call, 10m a "
               "transfer",
       .kind = Kind::kDuration},
      {.name = "json", .help = "print JSON for programs", .kind = Kind::kSwitch},
      {.name = "no-colour", .help = "no colours; so does $NO_COLOR", .kind = Kind::kSwitch},
      {.name = "help", .help = "explain the verb", .kind = Kind::kSwitch}};
  return *options;
}

}  // namespace lorry::cli
