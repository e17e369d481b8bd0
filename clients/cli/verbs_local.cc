// up and doctor: what concerns this machine.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "clients/cli/context.h"
#include "clients/cli/doctor.h"
#include "clients/cli/local_fleet.h"
#include "clients/cli/verbs.h"
#include "lib/base/error.h"
#include "lib/base/file_lock.h"

namespace lorry::cli {
namespace {

// A service that is not up after this long on a laptop will not come up.
constexpr int64_t kReadyTimeoutMs = 60'000;
// An engine that runs already is recognised within a second or two.
constexpr int64_t kEnginesTimeoutMs = 10'000;
constexpr int64_t kEnginesLookMs = 100;
// Of `lorry up` without --engine, which is of use where engines come later.
constexpr char kNoEngine[] =
    "no engine is attached: versions that are published are stored, and none is served";
constexpr char kAttach[] = "lorry attach --engine http://127.0.0.1:30000";

// Whole or not at all: other commands read it at any moment.
absl::Status WriteUpFile(const nlohmann::json& addresses) {
  std::error_code error;
  std::filesystem::create_directories(StateDir(), error);
  const std::string part = UpFile() + ".part";
  std::ofstream file(part, std::ios::trunc);
  file << addresses.dump(2) << "\n";
  file.close();
  const int failed = errno;
  if (file) std::filesystem::rename(part, UpFile(), error);
  if (file && !error) return absl::OkStatus();
  const std::string why = error ? error.message() : std::strerror(failed);
  return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
               absl::StrCat(UpFile(), " cannot be written: ", why,
                            "; set XDG_STATE_HOME to a folder that can, by which the other verbs "
                            "and Python find it"));
}

// Removes the file where it is this process's.
void RemoveUpFile() {
  std::error_code ignored;
  if (RunningUp().value("pid", 0) == ::getpid()) std::filesystem::remove(UpFile(), ignored);
}

// Whether the file is of a fleet that runs over another folder. It holds that folder's lock, while
// its pid may be another process's after a restart of the machine.
bool IsAnothers(const nlohmann::json& up, const std::string& data_dir) {
  const std::string folder = TextIn(up, "data_dir");
  if (folder.empty() || folder == data_dir) return false;
  const FileLock lock(folder + "/run/lock");
  return lock.error() == 0 && !lock.held();
}

// A word as a shell reads it back.
std::string InShell(const std::string& word) {
  const bool plain = std::ranges::all_of(word, [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("/._-+:,@=").find(c) != std::string_view::npos;
  });
  return plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// Where the other verbs and Python find the fleet, unless they find another that runs. The flags by
// which this one is reached then, each with a space before it; empty where it is found without.
absl::StatusOr<std::string> Announce(const nlohmann::json& addresses) {
  const nlohmann::json known = RunningUp();
  const auto text = [&](const char* key) { return addresses.value(key, std::string()); };
  if (!IsAnothers(known, text("data_dir"))) {
    LORRY_RETURN_IF_ERROR(WriteUpFile(addresses));
    return "";
  }
  std::string flags =
      absl::StrCat(" --store ", text("store"), " --orchestrator ", text("orchestrator"),
                   " --token-file ", InShell(text("token_file")));
  std::fprintf(stderr,
               "lorry: the other verbs and Python go on with the fleet of process %d; this one is "
               "reached by%s\n",
               known.value("pid", 0), flags.c_str());
  return flags;
}

const lorry::sync::v1::MemberStatus* FindMember(const lorry::sync::v1::GetStatusResponse& status,
                                                const std::string& name) {
  for (const auto& member : status.members()) {
    if (member.member() == name) return &member;
  }
  return nullptr;
}

// The orchestrator's picture once every engine is READY or needs somebody, or when time is up.
lorry::sync::v1::GetStatusResponse AwaitEngines(LocalFleet& fleet, client::Client& client,
                                                const nlohmann::json& engines) {
  const SteadyClock clock;
  const Tick ends_at = clock.Now() + kEnginesTimeoutMs;
  lorry::sync::v1::GetStatusResponse status;
  do {
    if (auto answer = client.Status(); answer.ok()) status = *std::move(answer);
    size_t settled = 0;
    for (const nlohmann::json& engine : engines) {
      const auto* member = FindMember(status, engine.value("member", ""));
      if (member == nullptr) continue;
      // JOINING with a reason, ENGINE_LORA_DISABLED for instance, waits for somebody's hand.
      const bool stuck = member->observed().health_detail().starts_with("ENGINE_");
      if (member->state() == "READY" || stuck) ++settled;
    }
    if (settled >= engines.size()) break;
  } while (!fleet.Wait(kEnginesLookMs) && clock.Now() < ends_at);
  return status;
}

// `flags`: what its hints need to reach this fleet and no other.
std::string Welcome(const nlohmann::json& up, const lorry::sync::v1::GetStatusResponse& status,
                    const std::string& flags, const Context& context) {
  Table table({"SERVICE", "ADDRESS", "STATE", "DETAIL"});
  const auto text = [](const nlohmann::json& object, const char* key) {
    return object.value(key, std::string());
  };
  table.Add({{"adapter-store", Colour::kBold}, text(up, "store"), {"ready", Colour::kGood}});
  table.Add(
      {{"sync-orchestrator", Colour::kBold}, text(up, "orchestrator"), {"ready", Colour::kGood}});
  std::string door;
  for (const nlohmann::json& engine : up["engines"]) {
    if (door.empty()) door = text(engine, "door");
    Cell state("not attached", Colour::kWarn),
        detail(absl::StrCat("engine ", text(engine, "engine")));
    if (const auto* member = FindMember(status, text(engine, "member"))) {
      state = {member->state(), member->state() == "READY" ? Colour::kGood : Colour::kWarn};
      const std::string& why = member->observed().health_detail();
      if (!why.empty()) absl::StrAppend(&detail.text, "; ", why);
    }
    table.Add({{text(engine, "member"), Colour::kBold}, text(engine, "door"), state, detail});
  }
  std::string out = table.Render(context.colour());
  absl::StrAppend(&out, "\ndata and logs in ", text(up, "data_dir"), "; Ctrl-C stops everything\n");
  if (door.empty()) absl::StrAppend(&out, "\n", context.Painted(kNoEngine, Colour::kWarn), "\n");
  absl::StrAppend(&out, "\nin another terminal:\n");
  if (door.empty()) absl::StrAppend(&out, "  ", kAttach, flags, "\n");
  absl::StrAppend(&out, "  lorry publish DIR --adapter trial --wait serving", flags, "\n",
                  "  lorry watch", flags, "\n");
  if (!door.empty()) {
    absl::StrAppend(&out, "  curl ", door,
                    "/v1/completions -H 'Content-Type: application/json' \\\n",
                    "    -d '{\"model\": \"trial\", \"prompt\": \"Hello\", \"max_tokens\": 8}'\n");
  }
  return out;
}

bool IsUtf8(const nlohmann::json& text) {
  using Broken = nlohmann::json::error_handler_t;  // what becomes of bytes that are not
  return text.dump(-1, ' ', false, Broken::ignore) == text.dump(-1, ' ', false, Broken::replace);
}

absl::StatusOr<LocalFleetOptions> OptionsFrom(const Arguments& arguments, const char* folder) {
  LocalFleetOptions options;
  options.data_dir = arguments.Text("data-dir");
  if (options.data_dir.empty()) options.data_dir = absl::StrCat(StateDir(), "/", folder);
  options.data_dir = std::filesystem::absolute(options.data_dir).lexically_normal().string();
  if (!IsUtf8(options.data_dir))
    return Error(
        absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
        "the folder's name is no UTF-8, and JSON tells it to others; name another one with "
        "--data-dir");
  options.bin_dir = arguments.Has("bin-dir")
                        ? arguments.Text("bin-dir")
                        : std::filesystem::path(OwnProgram()).parent_path().string();
  options.pool = arguments.Text("pool");
  options.base_model_config = arguments.Text("base-model-config");
  options.base_model_unchecked = arguments.Has("base-model-unchecked");
  options.keep_going = arguments.Has("keep-going");
  options.until_stdin_ends = arguments.Has("until-stdin-ends");
  options.ready_timeout_ms = kReadyTimeoutMs;
  for (const std::string& engine : arguments.Texts("engine")) {
    LORRY_ASSIGN_OR_RETURN(const std::string url, EngineUrl(engine));
    // Two proxies would share a folder, and a place in the fleet.
    for (const std::string& other : options.engines) {
      if (MemberName(other) != MemberName(url)) continue;
      return Usage(absl::StrCat("--engine=", other, " and --engine=", url, " are both ",
                                MemberName(url), "; name each engine once"));
    }
    options.engines.push_back(url);
  }
  options.proxy_flags = arguments.Texts("proxy-flag");
  for (const std::string& flag : options.proxy_flags) LORRY_RETURN_IF_ERROR(CheckProxyFlag(flag));
  return options;
}

// Until somebody asks to stop, or a service ends that is not to be started again.
absl::StatusOr<int> RunToTheEnd(LocalFleet& fleet) {
  const absl::Status ended = fleet.Run();
  RemoveUpFile();
  fleet.Stop();
  LORRY_RETURN_IF_ERROR(ended);
  return kOk;
}

absl::StatusOr<int> Up(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(LocalFleetOptions options, OptionsFrom(arguments, "data"));
  options.ready_timeout_ms = context.TimeoutOr(options.ready_timeout_ms);
  LocalFleet fleet(options);
  const absl::Status started = fleet.Start();
  if (absl::IsCancelled(started)) return kOk;
  LORRY_RETURN_IF_ERROR(started);
  const nlohmann::json up = fleet.Addresses();
  LORRY_ASSIGN_OR_RETURN(const std::string flags, Announce(up));
  if (context.json()) {
    context.Print(up.dump() + "\n");
    if (up["engines"].empty())
      std::fprintf(stderr, "lorry: %s; next: %s%s\n", kNoEngine, kAttach, flags.c_str());
  } else {
    LORRY_ASSIGN_OR_RETURN(const auto client,
                           client::Client::Connect({.store = up.value("store", ""),
                                                    .orchestrator = up.value("orchestrator", ""),
                                                    .token_file = up.value("token_file", ""),
                                                    .call_timeout_ms = kEnginesTimeoutMs}));
    context.Print(Welcome(up, AwaitEngines(fleet, *client, up["engines"]), flags, context));
  }
  return RunToTheEnd(fleet);
}

absl::StatusOr<int> Attach(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(LocalFleetOptions options, OptionsFrom(arguments, "doors"));
  // Doors of several engines may be put up one by one.
  if (arguments.Text("data-dir").empty() && !options.engines.empty())
    absl::StrAppend(&options.data_dir, "/", MemberName(options.engines.front()));
  options.ready_timeout_ms = context.TimeoutOr(options.ready_timeout_ms);
  options.services = context.Reached();
  if (options.engines.empty())
    return Usage("lorry attach --engine URL: name the engine that a door is to be put in front of");
  if (options.services->store.empty() || options.services->orchestrator.empty())
    return Usage(
        "lorry attach: name the services with --store and --orchestrator, or run lorry up");
  LocalFleet fleet(options);
  const absl::Status started = fleet.Start();
  if (absl::IsCancelled(started)) return kOk;
  LORRY_RETURN_IF_ERROR(started);
  const nlohmann::json attached = fleet.Addresses();
  if (context.json()) {
    context.Print(attached.dump() + "\n");
  } else {
    Table table({"MEMBER", "ENGINE", "DOOR"});
    for (const nlohmann::json& engine : attached["engines"]) {
      table.Add({{engine.value("member", ""), Colour::kBold},
                 engine.value("engine", ""),
                 engine.value("door", "")});
    }
    context.Print(table);
    context.Print(absl::StrCat(
        "\nclients that call these doors instead of their engines are served by adapter name; "
        "lorry status shows how far each is\ndata and logs in ",
        options.data_dir, "; Ctrl-C takes the doors away, and the engines go on without them\n"));
  }
  return RunToTheEnd(fleet);
}

std::vector<Option> LocalOptions() {
  return {
      {.name = "engine",
       .value = "URL",
       .help = "a running SGLang or vLLM: http://127.0.0.1:30000",
       .repeated = true},
      {.name = "data-dir",
       .value = "DIR",
       .help = "everything durable, and logs; default in the folder of up.json"},
      {.name = "pool", .value = "NAME", .help = "the engines' pool", .fallback = "rollout"},
      {.name = "base-model-config",
       .value = "FILE",
       .help = "config.json of the engines' base model; needed only where the engine does not say "
               "what its model is and its model directory cannot be read from here"},
      {.name = "base-model-unchecked",
       .help = "serve adapters without comparing their shapes with the base model's",
       .kind = Kind::kSwitch},
      {.name = "proxy-flag",
       .value = "--NAME=VALUE",
       .help = "one more flag for every engine-proxy, as in --proxy-flag=--engine-key-file=FILE; "
               "`engine-proxy --help` lists them",
       .kind = Kind::kFlag,
       .repeated = true},
      {.name = "keep-going",
       .help = "start a service that ended again, with growing pauses",
       .kind = Kind::kSwitch},
      {.name = "until-stdin-ends",
       .help = "stop when standard input closes: lets a parent process take the fleet down with "
               "it, even if the parent is killed",
       .kind = Kind::kSwitch},
      {.name = "bin-dir",
       .value = "DIR",
       .help = "where the services' programs are; default beside this one"}};
}

}  // namespace

std::vector<Verb> LocalVerbs() {
  return {
      {.name = "up",
       .summary = "Runs all services on this machine, in front of engines that run already",
       .details =
           "One adapter-store, one sync-orchestrator and one engine-proxy an engine, on free "
           "loopback ports, the same ones each time over one --data-dir unless somebody else has "
           "taken them. A terminal that is closed ends them like Ctrl-C; under nohup they run on. "
           "Their addresses, and the file of a token that only this user can read, "
           "are written where the other verbs and Python find them ($XDG_STATE_HOME/lorry/up.json, "
           "else ~/.local/state/lorry/up.json). While that fleet runs, a second one with another "
           "--data-dir leaves the file alone and prints the addresses to reach it by. When a "
           "service ends, the rest is stopped and the exit status is 1, unless --keep-going is "
           "given. The engines' copies of adapters lie in /dev/shm/lorry-UID/MEMBER and stay "
           "there, because an engine may read them again and the next `lorry up` goes on with "
           "them: delete MEMBER's once its engine is gone for good. Without --engine versions are "
           "stored and none is served, until `lorry attach` "
           "puts a door in front of an engine.",
       .options = LocalOptions(),
       .examples = {"lorry up --engine http://127.0.0.1:30000",
                    "lorry up --engine 30000 --proxy-flag=--engine-key-file=engine.key",
                    "lorry up --engine 30000 --engine 30001 --data-dir /var/tmp/lorry"},
       .run = Up},
      {.name = "attach",
       .summary =
           "Puts doors in front of engines that run already, for services that run elsewhere",
       .details =
           "One engine-proxy an engine, on free loopback ports, for the store and the orchestrator "
           "that --store and --orchestrator name. Clients call the door instead of the engine. "
           "When a door ends, the others are stopped and the exit status is 1, unless "
           "--keep-going is given.",
       .options = LocalOptions(),
       .examples = {"lorry attach --engine http://127.0.0.1:30000",
                    "lorry attach --engine 30000 --store store:7601 --orchestrator sync:7611"},
       .run = Attach},
      {.name = "doctor",
       .summary = "Looks for what is broken or slow, and says what to do about it",
       .details = "Services, engines, slots, UCX and shared memory.",
       .run = Doctor}};
}

}  // namespace lorry::cli
