// lease, release, leases: versions that clients call on the engines by themselves.
#include <pwd.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/context.h"
#include "clients/cli/status_view.h"
#include "clients/cli/verbs.h"
#include "lib/base/counted.h"
#include "lib/base/error.h"

namespace lorry::cli {
namespace {

namespace pb = lorry::sync::v1;

constexpr size_t kNameMax = 63;

std::string Selector(const Arguments& arguments) {
  const std::string version = arguments.At(1);
  return version.empty() ? arguments.At(0) : absl::StrCat(arguments.At(0), "@", version);
}

// Whoever is at this terminal, so that one person's release leaves the leases of others alone; as
// a holder is spelled.
std::string HolderOf(const Arguments& arguments) {
  if (arguments.Has("holder")) return arguments.Text("holder");
  const passwd* user = ::getpwuid(::geteuid());
  char host[64] = "";
  ::gethostname(host, sizeof(host) - 1);
  std::string name = absl::AsciiStrToLower(
      absl::StrCat("cli-", user == nullptr ? absl::StrCat(::geteuid()) : user->pw_name, "-", host));
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_') c = '-';
  }
  return name.substr(0, kNameMax);
}

pb::ResolveRequest RequestOf(const Arguments& arguments, int64_t ttl_ms) {
  pb::ResolveRequest request;
  request.set_selector(Selector(arguments));
  request.set_pool(arguments.Text("pool"));
  request.set_holder(HolderOf(arguments));
  request.set_ttl_ms(ttl_ms);
  return request;
}

absl::StatusOr<int> Lease(Context& context, const Arguments& arguments) {
  const pb::ResolveRequest request = RequestOf(arguments, arguments.Milliseconds("ttl"));
  if (request.ttl_ms() <= 0) return Usage("--ttl must be above 0; `lorry release` ends a lease");
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const pb::ResolveResponse got, client->Resolve(request));
  if (context.json()) {
    context.PrintJson(got);
    return kOk;
  }
  Table table({"ENGINES", "CALL IT"});
  for (const pb::EngineNameOfKind& name : got.engine_names()) {
    table.Add({absl::AsciiStrToLower(EnumWord(*pb::EngineKind_descriptor(), name.kind())),
               {name.engine_name(), Colour::kBold}});
  }
  if (!table.empty()) context.Print(table);
  const bool everywhere = got.members() > 0 && got.loaded() == got.members();
  context.Print(
      absl::StrCat(ToText(got.version()), " of ", got.version().adapter(), " is leased to ",
                   request.holder(), " for ", Age(got.ttl_ms()), "; loaded on ", got.loaded(),
                   " of ", Counted(got.members(), "engine"),
                   everywhere ? "\n" : " so far: ask again before you call the others\n"));
  return kOk;
}

absl::StatusOr<int> Release(Context& context, const Arguments& arguments) {
  const pb::ResolveRequest request = RequestOf(arguments, 0);
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const pb::ResolveResponse got, client->Resolve(request));
  if (context.json()) {
    context.PrintJson(got);
  } else {
    context.Print(
        got.released() == 0
            ? absl::StrCat(request.holder(), " leases nothing of it; `lorry leases` lists them\n")
            : absl::StrCat(Counted(got.released(), "lease"), " of ", request.holder(), " ended\n"));
  }
  return kOk;
}

absl::StatusOr<int> ListLeases(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const StatusMessage status,
                         StatusOf(*client, arguments.Text("pool"), arguments.At(0)));
  Table table({"ADAPTER", "VERSION", "POOL", "HOLDER", "ENDS IN"});
  for (const pb::LeaseStatus& lease : status.leases()) {
    if (context.json()) context.PrintJson(lease);
    table.Add({{lease.version().adapter(), Colour::kBold},
               ToText(lease.version()),
               lease.pool(),
               lease.holder(),
               Age(lease.left_ms())});
  }
  if (context.json()) return kOk;
  if (table.empty()) {
    context.Print("nothing is leased\n");
    return kOk;
  }
  context.Print(table);
  uint32_t all = 0;
  for (const pb::PoolStatus& pool : status.pools()) all += pool.leases();
  const auto shown = static_cast<uint32_t>(status.leases_size());
  if (all > shown) context.Print(absl::StrCat("and ", all - shown, " more\n"));
  return kOk;
}

const Positional kAdapter{"ADAPTER", "the adapter's name"};
const Option kHolder{
    .name = "holder", .value = "NAME", .help = "who leases; default cli-USER-HOST"};
const Option kPool{
    .name = "pool", .value = "NAME", .help = "default the adapter's first that is published to"};

}  // namespace

std::vector<Verb> LeaseVerbs() {
  return {
      {.name = "lease",
       .summary =
           "Keeps a version on every engine of a pool, for clients that call engines directly",
       .details = "It stays stored and loaded for so long, whatever is published meanwhile. Asked "
                  "again it is renewed, and says anew on how many engines it is loaded.",
       .positionals = {kAdapter, {"VERSION", "12, r2.12, newest or an alias; none: latest", true}},
       .options = {{.name = "ttl",
                    .value = "TIME",
                    .help = "for how long, a week at most",
                    .kind = Kind::kDuration,
                    .fallback = "10m"},
                   kHolder,
                   kPool},
       .examples = {"lorry lease policy 12 --ttl 2h"},
       .run = Lease},
      {.name = "release",
       .summary = "Ends a lease before its time",
       .details = "With a number it ends that lease; otherwise all that the holder has of the "
                  "adapter in the pool.",
       .positionals = {kAdapter, {"VERSION", "12 or r2.12; none: all", true}},
       .options = {kHolder, kPool},
       .examples = {"lorry release policy 12"},
       .run = Release},
      {.name = "leases",
       .summary = "Lists who leases what, and for how long yet",
       .positionals = {{"ADAPTER", "of this adapter only", true}},
       .options = {{.name = "pool", .value = "NAME", .help = "of this pool only"}},
       .run = ListLeases}};
}

}  // namespace lorry::cli
