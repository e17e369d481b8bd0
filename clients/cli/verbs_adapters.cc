// adapters, versions, alias, policy, delete, release-holder: what the store keeps.
#include <algorithm>
#include <chrono>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/context.h"
#include "clients/cli/policy_text.h"
#include "clients/cli/status_view.h"
#include "clients/cli/verbs.h"
#include "lib/base/counted.h"
#include "lib/base/error.h"
#include "lib/fleet/selector.h"
#include "lib/rpc/policy_messages.h"

namespace lorry::cli {
namespace {

// For a look that nothing depends on.
constexpr int64_t kLookTimeoutMs = 1'000;

int64_t NowMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

absl::StatusOr<int> Adapters(Context& context, const Arguments&) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto adapters, client->Adapters());
  Table table({"ADAPTER", "RUN", "NEWEST", "STORED", "STATE"});
  for (const auto& adapter : adapters) {
    if (context.json()) {
      context.PrintJson(adapter);
      continue;
    }
    const bool any = adapter.runs_size() > 0 && adapter.runs(0).has_newest();
    table.Add({{adapter.name(), Colour::kBold},
               adapter.current_run() == 0 ? "-" : absl::StrCat(adapter.current_run()),
               any ? absl::StrCat("v", adapter.runs(0).newest()) : "-",
               Bytes(adapter.stored_bytes()),
               adapter.archived() ? "archived" : ""});
  }
  if (context.json()) return kOk;
  if (table.empty()) {
    context.Print("no adapters yet; `lorry publish DIR --adapter NAME` stores the first version\n");
  } else {
    context.Print(table);
  }
  return kOk;
}

absl::StatusOr<int> Versions(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.At(0);
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto versions, client->Versions(adapter, arguments.Number("run"),
                                                               arguments.Number("limit")));
  if (context.json()) {
    for (const auto& version : versions) context.PrintJson(version);
    return kOk;
  }
  LORRY_ASSIGN_OR_RETURN(const auto known, client->GetAdapter(adapter));
  std::map<std::string, std::vector<std::string>> aliases;
  for (const auto& alias : known.aliases()) {
    aliases[ToText(alias.version())].push_back(alias.name());
  }
  Table table({"VERSION", "STORED", "SIZE", "RANK", "MODULES", "ALIASES", "DIGEST"});
  for (const auto& version : versions) {
    const std::string name = ToText(version.ref());
    table.Add({{name, Colour::kBold},
               absl::StrCat(Age(NowMs() - version.stored_at_ms()), " ago"),
               Bytes(version.image_bytes()),
               absl::StrCat(version.traits().rank_max()),
               absl::StrCat(version.traits().modules_size()),
               absl::StrJoin(aliases[name], ","),
               version.digest().substr(0, 25)});
  }
  if (table.empty()) {
    context.Print(absl::StrCat(adapter, " has no stored version yet\n"));
  } else {
    context.Print(table);
  }
  return kOk;
}

absl::StatusOr<int> Alias(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.At(0), name = arguments.At(1);
  const bool remove = arguments.Has("remove");
  if (remove == !arguments.At(2).empty()) {
    return Usage("alias needs either a VERSION or --remove");
  }
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  std::optional<common::v1::VersionRef> target;
  if (!remove) {
    LORRY_ASSIGN_OR_RETURN(const fleet::Selector version, fleet::ParseVersion(arguments.At(2)));
    LORRY_ASSIGN_OR_RETURN(target, context.Resolve(adapter, version, arguments.Text("pool")));
  }
  std::optional<uint64_t> expected;
  if (arguments.Has("expect")) expected = arguments.Number("expect");
  LORRY_ASSIGN_OR_RETURN(const auto alias, client->SetAlias(adapter, name, target, expected));
  if (context.json()) {
    context.PrintJson(alias);
  } else {
    context.Print(absl::StrCat(adapter, "@", name,
                               remove ? " is removed" : " is " + ToText(alias.version()),
                               ", generation ", alias.generation(), "\n"));
  }
  return kOk;
}

absl::StatusOr<store::v1::Adapter> Adjusted(client::Client& client, const std::string& name,
                                            const std::vector<std::string>& assignments) {
  const auto known = client.GetAdapter(name);
  if (absl::IsNotFound(known.status())) {
    return Error(
        absl::StatusCode::kNotFound, ReasonOf(known.status()),
        absl::StrCat(std::string(known.status().message()), "; `lorry create` makes a new one"));
  }
  LORRY_RETURN_IF_ERROR(known.status());
  if (assignments.empty()) return known->adapter();
  common::v1::AdapterPolicy policy = known->adapter().policy();
  for (const std::string& assignment : assignments) {
    LORRY_RETURN_IF_ERROR(SetField(policy, assignment));
  }
  return client.SetPolicy(name, policy, known->adapter().generation());
}

// A pool may be named before its first engine comes, so that a misspelt one is no error. The
// orchestrator need not be reached to set a policy, and is not waited for.
void WarnOfEmptyPools(const Context& context, const common::v1::AdapterPolicy& policy) {
  const auto pools = rpc::PolicyFromProto(policy);
  if (!pools.ok() || context.orchestrator().empty()) return;
  client::ConnectOptions options = context.Reached();
  options.call_timeout_ms = kLookTimeoutMs;
  const auto client = client::Client::Connect(options);
  if (!client.ok()) return;
  const auto status = (*client)->Status();
  if (!status.ok()) return;
  for (const auto& [pool, source] : pools->pools) {
    const std::string why = WhyNoEngine(*status, pool.value);
    if (!why.empty()) std::fprintf(stderr, "lorry: %s\n", Visible(why).c_str());
  }
}

absl::StatusOr<int> Policy(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const store::v1::Adapter adapter,
                         Adjusted(*client, arguments.At(0), arguments.Texts("set")));
  if (context.json()) {
    context.PrintJson(adapter.policy());
  } else {
    LORRY_ASSIGN_OR_RETURN(const auto lines, DescribePolicy(adapter.policy()));
    Table table({"FIELD", "VALUE", ""});
    for (const PolicyLine& line : lines) {
      table.Add({line.field,
                 {line.value, line.is_default ? Colour::kPlain : Colour::kBold},
                 {line.is_default ? "default" : "", Colour::kDim}});
    }
    context.Print(absl::StrCat(adapter.name(), ", generation ", adapter.generation(), "\n"));
    context.Print(table);
  }
  if (arguments.Has("set")) WarnOfEmptyPools(context, adapter.policy());
  return kOk;
}

absl::StatusOr<int> Create(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  common::v1::AdapterPolicy policy;
  for (const std::string& assignment : arguments.Texts("set")) {
    LORRY_RETURN_IF_ERROR(SetField(policy, assignment));
  }
  const bool was_there = client->GetAdapter(arguments.At(0)).ok();
  // Generation 0: it must be new, or have this very policy.
  LORRY_ASSIGN_OR_RETURN(const store::v1::Adapter adapter,
                         client->SetPolicy(arguments.At(0), policy, 0));
  if (context.json()) {
    context.PrintJson(adapter);
  } else {
    context.Print(absl::StrCat(
        adapter.name(), was_there ? " was there already, with this policy\n" : " is created\n"));
  }
  WarnOfEmptyPools(context, policy);
  return kOk;
}

absl::StatusOr<int> Archive(Context& context, const Arguments& arguments) {
  const bool undo = arguments.Has("undo");
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const store::v1::Adapter adapter,
                         client->ArchiveAdapter(arguments.At(0), !undo));
  if (context.json()) {
    context.PrintJson(adapter);
  } else {
    context.Print(absl::StrCat(adapter.name(), undo ? " is in service again\n"
                                                    : " is archived: engines let it go, what is "
                                                      "stored stays\n"));
  }
  return kOk;
}

absl::StatusOr<int> DeleteWhole(Context& context, const std::string& adapter, bool with_versions) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto deleted, client->DeleteAdapter(adapter, with_versions));
  if (context.json()) {
    context.PrintJson({{"adapter", adapter},
                       {"versions", uint64_t{deleted.versions()}},
                       {"bytes", deleted.bytes()}});
  } else {
    context.Print(absl::StrCat(adapter, " is deleted, with ",
                               Counted(deleted.versions(), "version"), " of ",
                               Bytes(deleted.bytes()), "\n"));
  }
  return kOk;
}

absl::StatusOr<int> Delete(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.At(0);
  if (arguments.At(1).empty()) {
    return DeleteWhole(context, adapter, arguments.Has("with-versions"));
  }
  if (arguments.Has("with-versions")) {
    return Usage("--with-versions deletes an adapter: name no VERSION beside it");
  }
  LORRY_ASSIGN_OR_RETURN(const fleet::Selector named, fleet::ParseVersion(arguments.At(1)));
  const bool with_run = named.kind == fleet::Selector::Kind::kVersion;
  if (!with_run && named.kind != fleet::Selector::Kind::kNumber) {
    return Usage("delete takes a number, as 12 or r2.12: a name may move while you type");
  }
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  common::v1::VersionRef version = client::MakeRef(adapter, named.run.value, named.number.value);
  if (!with_run) {
    // The store wants the run named, since the current one may change at any moment.
    LORRY_ASSIGN_OR_RETURN(const auto known, client->GetVersion(version));
    version = known.version().ref();
  }
  LORRY_RETURN_IF_ERROR(client->Delete(version));
  if (context.json()) {
    context.PrintJson({{"deleted", ToText(version)}, {"adapter", adapter}});
  } else {
    context.Print(absl::StrCat(adapter, " ", ToText(version), " is deleted\n"));
  }
  return kOk;
}

// "policy r1.12" of each version that the holder keeps.
absl::StatusOr<std::vector<std::string>> HeldBy(client::Client& client, const std::string& holder) {
  std::vector<std::string> held;
  LORRY_ASSIGN_OR_RETURN(const auto adapters, client.Adapters());
  for (const auto& adapter : adapters) {
    LORRY_ASSIGN_OR_RETURN(const auto versions, client.Versions(adapter.name()));
    for (const auto& version : versions) {
      const auto got = client.GetVersion(version.ref());
      if (absl::IsNotFound(got.status())) continue;  // deleted since
      LORRY_RETURN_IF_ERROR(got.status());
      if (std::ranges::count(got->holders(), holder) == 0) continue;
      held.push_back(absl::StrCat(adapter.name(), " ", ToText(version.ref())));
    }
  }
  return held;
}

absl::StatusOr<int> ReleaseHolder(Context& context, const Arguments& arguments) {
  const std::string& holder = arguments.At(0);
  if (holder.starts_with("alias:")) {
    return Usage("an alias is removed by `lorry alias ADAPTER NAME --remove`");
  }
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const std::vector<std::string> held, HeldBy(*client, holder));
  // The store would remember a misspelled name as another holder.
  if (!held.empty()) LORRY_RETURN_IF_ERROR(client->ReleaseHolder(holder));
  if (context.json()) {
    for (const std::string& name : held) {
      context.PrintJson({{"holder", holder}, {"released", name}});
    }
  } else if (held.empty()) {
    context.Print(
        absl::StrCat(holder, " holds nothing; what `lorry delete` says names who does\n"));
  } else {
    context.Print(absl::StrCat(holder, " lets go of ", Counted(held.size(), "version"), ": ",
                               absl::StrJoin(held, ", "), "\n"));
  }
  return kOk;
}

Verb ReleaseHolderVerb() {
  return {
      .name = "release-holder",
      .summary = "Lets go of all that the orchestrator of a fleet which is gone holds at the store",
      .details =
          "Nothing is deleted by it, but may be from then on. An orchestrator that is "
          "still there takes its records for lost, decides nothing more and has to adopt "
          "its fleet (`lorry adopt`).",
      .positionals = {{"HOLDER",
                       "as the refusal of `lorry delete` names it: orchestrator:NAME, where "
                       "--cluster was NAME"}},
      .examples = {"lorry release-holder orchestrator:old"},
      .run = ReleaseHolder};
}

}  // namespace

std::vector<Verb> AdapterVerbs() {
  const Positional adapter{"ADAPTER", "the adapter's name"};
  const Positional version{"VERSION", "12, r2.12, newest, latest or an alias"};
  return {
      {.name = "adapters", .summary = "Lists the adapters that the store knows", .run = Adapters},
      {.name = "versions",
       .summary = "Lists stored versions, newest first",
       .positionals = {adapter},
       .options = {{.name = "run", .value = "N", .help = "of this run only", .kind = Kind::kNumber},
                   {.name = "limit",
                    .value = "N",
                    .help = "at most so many; 0 for all",
                    .kind = Kind::kNumber,
                    .fallback = "50"}},
       .run = Versions},
      {.name = "alias",
       .summary = "Moves, creates or removes a durable name of a version",
       .positionals = {adapter, {"NAME", "eval, best, ..."}, {"VERSION", version.help, true}},
       .options = {{.name = "remove", .help = "remove the alias", .kind = Kind::kSwitch},
                   {.name = "expect",
                    .value = "GENERATION",
                    .help = "refuse unless the alias has this generation (0: is new)",
                    .kind = Kind::kNumber},
                   PoolOfLatest()},
       .examples = {"lorry alias policy eval 12", "lorry alias policy eval --remove"},
       .run = Alias},
      {.name = "policy",
       .summary = "Shows an adapter's policy, or changes fields of it",
       .details =
           "Fields that are not named stay as they are; FIELD=default goes back to the default. A "
           "change that somebody else made meanwhile is not overwritten. Times are milliseconds, "
           "or as in 90s and 5m; sizes are bytes, or as in 10GiB.",
       .positionals = {adapter},
       .options = {{.name = "set",
                    .value = "FIELD=VALUE",
                    .help = "skip=never, keep=3, min_engines=75%, stage_deadline_ms=90s, "
                            "pools=rollout,eval=rollout",
                    .repeated = true}},
       .settings = PolicySettings(),
       .examples = {"lorry policy policy --set keep=4 --set max_staleness=2"},
       .run = Policy},
      {.name = "create",
       .summary = "Creates an adapter before its first version is published",
       .details = "Publishing creates an adapter, too, with the default policy.",
       .positionals = {adapter},
       .options = {{.name = "set",
                    .value = "FIELD=VALUE",
                    .help = "as `lorry policy` takes it",
                    .repeated = true}},
       .examples = {"lorry create policy --set keep=4"},
       .run = Create},
      {.name = "archive",
       .summary = "Takes an adapter out of service; what is stored stays",
       .positionals = {adapter},
       .options = {{.name = "undo", .help = "take it back", .kind = Kind::kSwitch}},
       .run = Archive},
      {.name = "delete",
       .summary = "Deletes a stored version that nobody holds, or a whole adapter",
       .positionals = {adapter, {"VERSION", "12 or r2.12; none: the adapter", true}},
       .options = {{.name = "with-versions",
                    .help = "an adapter's versions go with it",
                    .kind = Kind::kSwitch}},
       .examples = {"lorry delete policy 12", "lorry delete policy --with-versions"},
       .run = Delete},
      ReleaseHolderVerb()};
}

}  // namespace lorry::cli
