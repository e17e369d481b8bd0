// detach: how to go back to engines without Lorry. It changes nothing.
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/context.h"
#include "clients/cli/verbs.h"
#include "lib/base/error.h"

namespace lorry::cli {
namespace {

using lorry::sync::v1::MemberStatus;

// What is to be known of one member.
struct Way {
  std::string member, pool, door;
  std::string engine;  // its URL, or $ENGINE where this command cannot know it
  bool is_up = false;  // `lorry up` on this machine runs its proxy
  std::string unload_path;
  std::map<std::string, std::string>
      answering;                    // adapter → the engine's name for what the door gives
  std::vector<std::string> loaded;  // engine's names
};

Way WayBack(const MemberStatus& status, const std::map<std::string, std::string>& up) {
  const auto known = up.find(status.member());
  const auto& observed = status.observed();
  const bool is_vllm = observed.limits().kind() == lorry::sync::v1::ENGINE_KIND_VLLM;
  Way way{.member = status.member(),
          .pool = status.pool(),
          .door = status.door_address(),
          .engine = known == up.end() ? "$ENGINE" : known->second,
          .is_up = known != up.end(),
          .unload_path = is_vllm ? "/v1/unload_lora_adapter" : "/unload_lora_adapter"};
  for (const auto& row : observed.rows())
    if (!row.target().empty()) way.answering[row.adapter()] = row.target();
  for (const auto& residency : observed.residencies())
    if (residency.state() == lorry::sync::v1::RESIDENCY_STATE_LOADED)
      way.loaded.push_back(residency.engine_name());
  return way;
}

// As a terminal may be shown it: every field comes from a member.
Way Shown(Way way) {
  for (std::string* field : {&way.member, &way.pool, &way.door, &way.engine})
    *field = Visible(*field);
  for (std::string& name : way.loaded) name = Visible(name);
  std::map<std::string, std::string> answering;
  for (const auto& [adapter, name] : way.answering) answering[Visible(adapter)] = Visible(name);
  way.answering = std::move(answering);
  return way;
}

std::string Text(const Way& way, const Context& context) {
  std::string out = absl::StrCat(context.Painted(way.member, Colour::kBold), "\n");
  if (!way.is_up)
    absl::StrAppend(&out, "  ENGINE is its engine's own URL: the --engine of its proxy\n");
  // Nobody counts the requests of clients that call the engine, so a later version would take what
  // they ask for away before step 3 has ended that.
  out += "  1. stop publishing, or take a lease and ask `lorry detach` again for the names\n";
  for (const auto& [adapter, name] : way.answering)
    absl::StrAppend(&out, "       lorry lease ", adapter, " --pool ", way.pool, " --ttl 1h\n");
  absl::StrAppend(&out, "  2. send clients to ", way.engine, " instead of ", way.door);
  out += way.answering.empty() ? "\n" : ", and have them ask by the engine's names:\n";
  for (const auto& [adapter, name] : way.answering)
    absl::StrAppend(&out, "       ", adapter, " is ", name, "\n");
  absl::StrAppend(&out, "  3. lorry drain ", way.member, "\n  4. ");
  if (way.is_up) {
    out += "end `lorry up`: Ctrl-C there, or close() of lorry.local's fleet\n";
  } else {
    absl::StrAppend(
        &out, "end its proxy: Ctrl-C of `lorry attach`; close() of what lorry.attach gave; in ",
        "Kubernetes, take the five includes out of the engine's pod template, or set "
        "engine.enabled=false where the chart runs the engine\n");
  }
  if (way.loaded.empty()) return out + "  nothing is loaded in the engine\n";
  absl::StrAppend(
      &out,
      "  5. what is loaded stays, and its files must stay with it: in the proxy's --image-dir, ",
      "by default /dev/shm/lorry-UID/", way.member, " on the engine's host. To be rid of it, once ",
      "nobody asks for it:\n");
  for (const std::string& name : way.loaded)
    absl::StrAppend(&out, "       curl -X POST ", way.engine, way.unload_path,
                    " -H 'Content-Type: application/json' -d '{\"lora_name\": \"", name, "\"}'\n");
  return out;
}

nlohmann::json Json(const Way& way) {
  return {{"member", way.member},
          {"door", way.door},
          {"engine", way.is_up ? way.engine : ""},
          {"unload_path", way.unload_path},
          {"answering", way.answering},
          {"loaded", way.loaded}};
}

absl::StatusOr<int> Detach(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const auto status, client->Status());
  const std::map<std::string, std::string>& up = context.EngineUrls();
  const std::string& wanted = arguments.At(0);
  std::vector<std::string> texts;
  for (const MemberStatus& member : status.members()) {
    if (!wanted.empty() && member.member() != wanted && member.door_address() != wanted) continue;
    const Way way = WayBack(member, up);
    texts.push_back(context.json() ? Json(way).dump() + "\n" : Text(Shown(way), context));
  }
  if (texts.empty() && !wanted.empty())
    return Error(absl::StatusCode::kNotFound, "MEMBER_UNKNOWN",
                 absl::StrCat("no engine is attached as ", wanted, "; `lorry engines` lists them"));
  if (texts.empty() && !context.json())
    texts = {"no engine is attached: nothing to go back from\n"};
  context.Print(absl::StrJoin(texts, context.json() ? "" : "\n"));
  return kOk;
}

}  // namespace

std::vector<Verb> DetachVerbs() {
  return {{.name = "detach",
           .summary = "Prints how to go back to engines without Lorry; changes nothing",
           .details =
               "For each engine: what keeps its versions loaded until clients have moved on, "
               "where these go instead of its door and by which names they ask there, how "
               "its proxy ends, and what stays loaded. The engine runs on through all of "
               "it.",
           .positionals = {{"MEMBER",
                            "its name, as in `lorry engines`, or its door's URL; none: all", true}},
           .examples = {"lorry detach", "lorry detach engine-30000"},
           .run = Detach}};
}

}  // namespace lorry::cli
