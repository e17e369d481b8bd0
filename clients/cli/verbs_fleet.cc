// status, engines, watch, rollback, mark, adopt, why: what the orchestrator knows and does.
#include <ctime>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/context.h"
#include "clients/cli/remedies.h"
#include "clients/cli/status_view.h"
#include "clients/cli/verbs.h"
#include "lib/base/error.h"
#include "lib/fleet/selector.h"

namespace lorry::cli {
namespace {

// How long a person waits for requests to end before looking again.
constexpr int64_t kDrainTimeoutMs = 60'000;

constexpr char kNoEngines[] =
    "no engine has attached yet; `lorry attach --engine URL` or engine-proxy --orchestrator "
    "brings one\n";

std::string NoneOf(const std::string& pool) {
  return pool.empty() ? kNoEngines : absl::StrCat("no engine is in pool ", pool, "\n");
}

std::string StatusScreen(const StatusMessage& status, const Context& context,
                         const std::string& pool) {
  const bool colour = context.colour();
  std::string screen;
  for (const std::string& warning : Warnings(status)) {
    absl::StrAppend(&screen, Paint("! " + Visible(warning), Colour::kWarn, colour), "\n");
  }
  screen += status.members_size() == 0 ? NoneOf(pool)
                                       : EnginesByAdapter(status, context.columns()).Render(colour);
  if (IsLarge(status))
    absl::StrAppend(
        &screen, status.members_size(),
        " engines; those in the same state share a line, and `lorry engines` lists each\n");
  if (status.pools_size() > 0) absl::StrAppend(&screen, "\n", Pools(status).Render(colour));
  if (!status.version().empty()) {
    const std::string line = absl::StrCat("sync-orchestrator ", status.version());
    absl::StrAppend(&screen, "\n", Paint(line, Colour::kDim, colour), "\n");
  }
  return screen;
}

absl::StatusOr<int> Status(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  const std::string adapter = arguments.Text("adapter");
  LORRY_ASSIGN_OR_RETURN(const StatusMessage status,
                         StatusOf(*client, arguments.Text("pool"), adapter));
  if (context.json()) {
    context.PrintJson(status);
  } else {
    context.Print(StatusScreen(status, context, arguments.Text("pool")));
    if (!adapter.empty() && status.pools_size() == 0)
      context.Print(absl::StrCat("no engine serves an adapter ", adapter,
                                 "; `lorry adapters` lists those that are stored\n"));
  }
  return kOk;
}

absl::StatusOr<int> ListEngines(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const StatusMessage status, StatusOf(*client, arguments.Text("pool")));
  if (context.json()) {
    for (const auto& member : status.members()) context.PrintJson(member);
  } else if (status.members_size() == 0) {
    context.Print(NoneOf(arguments.Text("pool")));
  } else {
    context.Print(Engines(status));
  }
  return kOk;
}

std::string ClockTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  char text[16];
  localtime_r(&now, &local);
  std::strftime(text, sizeof(text), "%H:%M:%S", &local);
  return text;
}

absl::StatusOr<int> Watch(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  StatusMessage before;
  const bool screen = context.terminal() && !context.json();
  const auto show = [&](const StatusMessage& status) {
    if (context.json()) {
      context.PrintJson(status);
    } else if (screen) {
      context.Print(absl::StrCat("\033[H\033[2J", context.Painted("lorry watch", Colour::kBold),
                                 "  ", ClockTime(), "  Ctrl-C ends\n\n",
                                 StatusScreen(status, context, arguments.Text("pool"))));
    } else {
      for (const std::string& line : Changes(before, status)) {
        context.Print(absl::StrCat(ClockTime(), " ", Visible(line), "\n"));
      }
      before = status;
    }
    return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;  // of whoever reads nothing more
  };
  const auto say_away = [](const absl::Status& why) {
    std::fprintf(stderr, "lorry: %s; dialling again\n",
                 Visible(std::string(why.message())).c_str());
  };
  if (arguments.Has("once")) {  // which has an end, and so a --timeout
    LORRY_ASSIGN_OR_RETURN(const StatusMessage status, StatusOf(*client, arguments.Text("pool")));
    show(status);
    return kOk;
  }
  // It may come yet.
  if (const auto now = StatusOf(*client, arguments.Text("pool")); absl::IsNotFound(now.status())) {
    std::fprintf(stderr, "lorry: %s\n", Visible(std::string(now.status().message())).c_str());
  }
  LORRY_RETURN_IF_ERROR(client->Watch(arguments.Text("pool"), show, say_away));
  return kOk;
}

// What the pool of the adapter is pinned to: " to v11", empty where it is not.
std::string PinOf(client::Client& client, const std::string& adapter, const std::string& pool) {
  const auto status = client.Status(pool, adapter);
  if (!status.ok() || status->pools_size() != 1 || !status->pools(0).has_override()) return "";
  return " to " + ToText(status->pools(0).override());
}

absl::StatusOr<int> Rollback(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.At(0);
  const bool lift = arguments.Has("lift");
  if (lift == !arguments.At(1).empty()) return Usage("rollback needs either a VERSION or --lift");
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const std::string pool, context.Pool(adapter, arguments.Text("pool")));
  std::optional<common::v1::VersionRef> target;
  const std::string pin = lift && !context.json() ? PinOf(*client, adapter, pool) : "";
  if (!lift) {
    LORRY_ASSIGN_OR_RETURN(const fleet::Selector version, fleet::ParseVersion(arguments.At(1)));
    LORRY_ASSIGN_OR_RETURN(target, context.Resolve(adapter, version, pool));
  }
  LORRY_ASSIGN_OR_RETURN(const auto set, client->SetOverride(adapter, pool, target));
  if (context.json()) {
    context.PrintJson({{"adapter", adapter},
                       {"pool", pool},
                       {"pinned_to", lift ? "" : ToText(*target)},
                       {"epoch", set.epoch()}});
  } else {
    context.Print(
        lift
            ? absl::StrCat(adapter, " in pool ", pool, " is no longer pinned", pin,
                           ": it follows what is published again. The newest version that was "
                           "published since the pin is synced now; if there is none, what is "
                           "served stays until the next publish, and nothing goes back to what "
                           "was served before the pin. `lorry status` shows it\n")
            : absl::StrCat(adapter, " in pool ", pool, " is pinned to ", ToText(*target),
                           "; `lorry status` shows the sync, `lorry rollback ", adapter, " --pool ",
                           pool, " --lift` ends the pin, and until then newer versions wait\n"));
  }
  return kOk;
}

absl::StatusOr<int> Retry(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.At(0);
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const fleet::Selector selector, fleet::ParseVersion(arguments.At(1)));
  LORRY_ASSIGN_OR_RETURN(const auto version,
                         context.Resolve(adapter, selector, arguments.Text("pool")));
  LORRY_RETURN_IF_ERROR(client->LiftVerdict(version));
  if (context.json()) {
    context.PrintJson({{"version", ToText(version)}});
  } else {
    context.Print(
        absl::StrCat("engines are asked again about ", ToText(version),
                     ", one of each kind first; `lorry status` shows what comes of it\n"));
  }
  return kOk;
}

absl::StatusOr<int> Mark(Context& context, const Arguments& arguments) {
  using lorry::sync::v1::MarkMemberRequest;
  MarkMemberRequest request;
  request.set_member(arguments.At(0));
  request.set_reason(arguments.Text("reason"));
  const std::string name = absl::StrCat("MARK_", absl::AsciiStrToUpper(arguments.At(1)));
  MarkMemberRequest::Mark mark = MarkMemberRequest::MARK_UNSPECIFIED;
  if (!MarkMemberRequest::Mark_Parse(name, &mark) || mark == MarkMemberRequest::MARK_UNSPECIFIED) {
    return Usage(
        absl::StrCat("\"", arguments.At(1), "\" is no mark; write excluded, included or dead"));
  }
  request.set_mark(mark);
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_RETURN_IF_ERROR(client->MarkMember(request));
  if (context.json()) {
    context.PrintJson(request);
  } else {
    context.Print(absl::StrCat(request.member(), " is ", arguments.At(1), "\n"));
  }
  return kOk;
}

absl::StatusOr<int> Drain(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  const std::string& member = arguments.At(0);
  LORRY_RETURN_IF_ERROR(client->Drain(member, context.TimeoutOr(kDrainTimeoutMs)));
  if (context.json()) {
    context.PrintJson({{"member", member}});
  } else {
    context.Print(absl::StrCat(member, " answers nobody any more; stop its proxy and engine\n"));
  }
  return kOk;
}

absl::StatusOr<int> Adopt(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto adopted,
                         client->AdoptFleet(arguments.Text("cluster"), arguments.Has("newest")));
  if (context.json()) {
    context.PrintJson(adopted);
  } else {
    context.Print(absl::StrCat("the fleet is adopted under incarnation ",
                               adopted.term().incarnation(), "\n"));
  }
  return kOk;
}

absl::StatusOr<int> Why(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto explained, client->Explain(arguments.At(0)));
  const auto& what = explained.what;
  if (context.json()) {
    context.PrintJson(what);
    return kOk;
  }
  Table table({"REQUEST", what.request_id()});
  table.Add({"engine", explained.member});
  table.Add({"route", what.route()});
  table.Add({"asked for", what.selector().empty() ? "nothing" : what.selector()});
  table.Add(
      {"got", what.engine_name().empty()
                  ? Cell("nothing", Colour::kBad)
                  : Cell(absl::StrCat(what.engine_name(), ", epoch ", what.epoch(),
                                      what.has_lag() ? absl::StrCat(", lag ", what.lag()) : ""))});
  table.Add({"status", what.status() == 0
                           ? Cell("still running")
                           : Cell(absl::StrCat(what.status()),
                                  what.status() < 400 ? Colour::kGood : Colour::kBad)});
  if (!what.reason().empty()) table.Add({"reason", {what.reason(), Colour::kBad}});
  const std::string remedy = Remedy(what.reason());
  if (!remedy.empty()) table.Add({"what to do", remedy});
  if (what.held_ms() > 0) table.Add({"waited at the door", Milliseconds(what.held_ms())});
  table.Add({"first byte after", Milliseconds(what.first_byte_ms())});
  if (what.total_ms() > 0) table.Add({"last byte after", Milliseconds(what.total_ms())});
  context.Print(table);
  return kOk;
}

const Option kPool{.name = "pool", .value = "NAME", .help = "of this pool only"};
const Option kPinned{.name = "pool",
                     .value = "NAME",
                     .help = "the pool; needed where several follow what is published"};
const Option kLift{.name = "lift",
                   .help = "end the pin: the pool follows what is published again",
                   .kind = Kind::kSwitch};
const Option kNewest{.name = "newest",
                     .help = "what serves something older and is not pinned goes on to the newest",
                     .kind = Kind::kSwitch};

}  // namespace

std::vector<Verb> FleetVerbs() {
  return {
      {.name = "status",
       .summary = "Shows what every engine serves and what each sync is doing",
       .details = "With more than 64 engines, those in the same state share a line.",
       .options = {kPool, {.name = "adapter", .value = "NAME", .help = "of this adapter only"}},
       .run = Status},
      {.name = "engines",
       .summary = "Lists engines with health, slots, load and address",
       .options = {kPool},
       .run = ListEngines},
      {.name = "watch",
       .summary = "Follows the fleet: a screen that is redrawn, or a line a change where stdout is "
                  "no terminal",
       .options = {kPool, {.name = "once", .help = "show it once and end", .kind = Kind::kSwitch}},
       .run = Watch},
      {.name = "rollback",
       .summary = "Pins a pool to a stored version, or with --lift ends the pin",
       .details =
           "Newer versions wait until --lift ends the pin; then the newest of them is synced.",
       .positionals = {{"ADAPTER", "the adapter's name"},
                       {"VERSION", "12, r2.12 or an alias", true}},
       .options = {kLift, kPinned},
       .examples = {"lorry rollback policy 11", "lorry rollback policy --lift"},
       .run = Rollback},
      {.name = "retry",
       .summary = "Lets engines try a version again that they refused, or died or hung of",
       .details =
           "One engine of each kind tries first. A version that is older than what its pools "
           "decided meanwhile is not synced by itself: pin it with `lorry rollback`.",
       .positionals = {{"ADAPTER", "the adapter's name"}, {"VERSION", "12, r2.12 or an alias"}},
       .options = {PoolOfLatest()},
       .examples = {"lorry retry policy 12"},
       .run = Retry},
      {.name = "mark",
       .summary = "Declares an engine excluded, included or dead",
       .details = "dead is your promise that its door answers nobody: barriers then no longer wait "
                  "for it.",
       .positionals = {{"MEMBER", "its name, as in `lorry engines`"},
                       {"MARK", "excluded, included or dead"}},
       .options = {{.name = "reason", .value = "TEXT", .help = "for whoever looks later"}},
       .run = Mark},
      {.name = "drain",
       .summary = "Closes the door of an engine and waits until its requests have ended",
       .details =
           "New requests are refused from then on, and those that run go on. Once none is left the "
           "engine leaves the fleet, whoever waits: no barrier waits for it. Where some run after "
           "--timeout (default 1m) it says so and aborts none: run it again to go on waiting. The "
           "door opens again when the proxy is started again.",
       .positionals = {{"MEMBER", "its name, as in `lorry engines`"}},
       .examples = {"lorry drain engine-30000 --timeout 15m"},
       .run = Drain},
      {.name = "adopt",
       .summary = "Adopts what is left, after the orchestrator or the store lost its state",
       .details =
           "If what was lost can be put back, put it back. Otherwise wait until every engine is "
           "attached, pin what must not move on (`lorry rollback`), and adopt.",
       .options = {{.name = "cluster",
                    .value = "NAME",
                    .help = "the orchestrator's --cluster, so that it is not sent to the wrong one",
                    .required = true},
                   kNewest},
       .run = Adopt},
      {.name = "why",
       .summary = "Says what happened to one request",
       .positionals = {{"REQUEST_ID", "X-Lorry-Request-Id of its reply"}},
       .run = Why}};
}

}  // namespace lorry::cli
