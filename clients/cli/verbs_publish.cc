// publish, import, export: what moves bytes.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "clients/cli/context.h"
#include "clients/cli/directory_name.h"
#include "clients/cli/policy_text.h"
#include "clients/cli/status_view.h"
#include "clients/cli/verbs.h"
#include "clients/cpp/peft_directory.h"
#include "lib/base/counted.h"
#include "lib/base/error.h"
#include "lib/base/ids.h"
#include "lib/fleet/selector.h"

namespace lorry::cli {
namespace {

// A sync over a few engines takes seconds; five minutes cover a cold start of one.
constexpr int64_t kServingTimeoutMs = 300'000;
// Bars for what a person would wait for; smaller uploads are over before one could be read.
constexpr uint64_t kBarBytesMin = uint64_t{32} << 20;

// Nobody would ever serve what is published for a pool that the policy does not name. A new adapter
// has the default policy.
absl::Status CheckNamedPool(client::Client& client, const std::string& adapter,
                            const std::string& pool) {
  if (pool.empty()) return absl::OkStatus();
  const auto known = client.GetAdapter(adapter);
  if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
  return CheckPool(adapter, known.ok() ? known->adapter().policy() : common::v1::AdapterPolicy(),
                   pool);
}

// The run to publish in: the current one, or a new one where asked or where there is none.
absl::StatusOr<store::v1::Run> PickRun(client::Client& client, const std::string& adapter,
                                       const std::string& which) {
  if (which == "current") {
    const auto known = client.GetAdapter(adapter);
    if (!known.ok() && !absl::IsNotFound(known.status())) return known.status();
    // Newest first.
    if (known.ok() && known->adapter().runs_size() > 0) return known->adapter().runs(0);
  }
  LORRY_ASSIGN_OR_RETURN(const auto opened, client.OpenRun({.adapter = adapter}));
  store::v1::Run run;
  run.set_number(opened.run());
  return run;
}

// `text` as a number; none for "next".
absl::StatusOr<std::optional<uint64_t>> ParseNumber(const std::string& text) {
  uint64_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return std::optional(number);
  if (text == "next") return std::optional<uint64_t>();
  return Usage(absl::StrCat("--version=", text, " is neither a whole number nor next"));
}

// One above all that the run has had, deleted or not, and above what it went on from: the store
// takes nothing lower.
uint64_t NextNumber(const store::v1::Run& run) {
  return std::max(run.newest(), run.resumed_from().number()) + 1;
}

absl::StatusOr<client::AdapterImage> Read(const std::string& directory,
                                          const Arguments& arguments) {
  return client::ReadPeftDirectory(directory,
                                   {.base_model_config = arguments.Text("base-model-config"),
                                    .adapter_in_file = arguments.Text("adapter-in-file")});
}

absl::StatusOr<common::v1::Version> Upload(Context& context, client::Client& client,
                                           const client::AdapterImage& image,
                                           const common::v1::VersionRef& version) {
  ProgressBar bar(absl::StrCat(version.adapter(), " v", version.number()),
                  context.bars() && image.size() >= kBarBytesMin);
  const SteadyClock clock;
  const Tick began = clock.Now();
  LORRY_ASSIGN_OR_RETURN(
      const common::v1::Version stored,
      client.Publish(image, version, {.progress = [&](uint64_t done, uint64_t total) {
                       bar.Update(done, total);
                     }}));
  bar.Clear();
  if (!context.json()) {
    context.Print(absl::StrCat(context.Painted("✓", Colour::kGood), " stored ", version.adapter(),
                               " ", ToText(stored.ref()), ", ", Bytes(stored.image_bytes()), " in ",
                               Milliseconds(clock.Now() - began), ", ", stored.digest(), "\n"));
  }
  return stored;
}

std::string StateWord(const lorry::sync::v1::WatchSyncResponse& progress) {
  return EnumWord(*lorry::sync::v1::SyncState_descriptor(), progress.state());
}

// Waits for the sync's end and says how it ended.
absl::StatusOr<int> WaitServing(Context& context, client::Client& client,
                                const common::v1::VersionRef& version, const std::string& pool) {
  std::string said;
  const auto on_progress = [&](const lorry::sync::v1::WatchSyncResponse& progress) {
    std::string line =
        absl::StrCat(StateWord(progress), progress.reason().empty() ? "" : " ", progress.reason(),
                     progress.detail().empty() ? "" : ": ", progress.detail());
    const std::string members = Progress(progress);
    if (!members.empty()) absl::StrAppend(&line, " (", members, ")");
    if (line == said || context.json() || progress.state() >= lorry::sync::v1::SYNC_STATE_ACTIVE) {
      return;
    }
    said = line;
    std::fprintf(stderr, "  %s\n", Visible(line).c_str());
  };
  LORRY_ASSIGN_OR_RETURN(
      const auto end,
      client.WatchSync(version, pool, context.TimeoutOr(kServingTimeoutMs), on_progress));
  if (context.json()) {
    context.PrintJson(end);
  }
  using lorry::sync::v1::SYNC_STATE_ACTIVE;
  using lorry::sync::v1::SYNC_STATE_STORED;
  if (end.state() == SYNC_STATE_STORED) {
    return Error(absl::StatusCode::kFailedPrecondition, "TOO_FEW_ENGINES",
                 absl::StrCat(version.adapter(), " ", ToText(version),
                              " is stored, and no engine follows this adapter"));
  }
  if (end.state() == SYNC_STATE_ACTIVE) {
    if (context.json()) return kOk;
    const auto& times = end.times();
    context.Print(absl::StrCat(context.Painted("✓", Colour::kGood), " serving on ", end.active(),
                               " of ", Counted(end.members(), "engine"), ", epoch ", end.epoch(),
                               " (stage ", Milliseconds(times.stage_ms()), ", activate ",
                               Milliseconds(times.activate_ms()), ")\n"));
    return kOk;
  }
  if (end.state() == lorry::sync::v1::SYNC_STATE_SUPERSEDED) {
    return Error(absl::StatusCode::kAborted, "SUPERSEDED",
                 absl::StrCat(version.adapter(), " ", ToText(version),
                              " is stored and will not be served: ", ToText(end.superseded_by()),
                              " was decided instead"));
  }
  return Error(
      absl::StatusCode::kFailedPrecondition, end.reason().empty() ? "STAGING_FAILED" : end.reason(),
      absl::StrCat(version.adapter(), " ", ToText(version), " is stored and will not be served",
                   end.detail().empty() ? "" : ": ", end.detail()));
}

absl::StatusOr<int> Publish(Context& context, const Arguments& arguments) {
  const std::string adapter = arguments.Text("adapter");
  LORRY_RETURN_IF_ERROR(CheckAdapterName(adapter));
  LORRY_ASSIGN_OR_RETURN(const auto number, ParseNumber(arguments.Text("version")));
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  // Before a run is opened, which creates an adapter or fences a trainer.
  LORRY_RETURN_IF_ERROR(CheckNamedPool(*client, adapter, arguments.Text("pool")));
  LORRY_ASSIGN_OR_RETURN(std::optional<client::AdapterImage> image,
                         Read(arguments.At(0), arguments));
  LORRY_ASSIGN_OR_RETURN(const store::v1::Run run,
                         PickRun(*client, adapter, arguments.Text("run")));
  LORRY_ASSIGN_OR_RETURN(
      const common::v1::Version stored,
      Upload(context, *client, *image,
             client::MakeRef(adapter, run.number(), number.value_or(NextNumber(run)))));
  image.reset();  // whoever waits for engines needs no memory for it
  if (context.json()) context.PrintJson(stored);
  if (arguments.Text("wait") != "serving") return kOk;
  return WaitServing(context, *client, stored.ref(), arguments.Text("pool"));
}

struct Found {
  std::string directory;
  NamedVersion named;
};

// A PEFT directory stands for itself, any other for those right below it.
absl::StatusOr<std::vector<Found>> FindDirectories(const Arguments& arguments) {
  std::vector<std::string> candidates;
  for (const std::string& named : arguments.positionals) {
    if (client::IsPeftDirectory(named)) {
      candidates.push_back(named);
      continue;
    }
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(named, error)) {
      if (client::IsPeftDirectory(entry.path().string()))
        candidates.push_back(entry.path().string());
    }
    if (error) {
      return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
                   absl::StrCat(named, " cannot be read: ", error.message()));
    }
  }
  std::vector<Found> found;
  for (const std::string& directory : candidates) {
    std::filesystem::path path = std::filesystem::path(directory).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    auto named = VersionOfDirectory(path.filename().string());
    if (!named.has_value()) {
      return Usage(absl::StrCat(directory,
                                " does not say which version it is; name it v7, "
                                "policy-v7 or checkpoint-7, or use publish --version"));
    }
    if (arguments.Has("adapter")) named->adapter = arguments.Text("adapter");
    if (named->adapter.empty()) {
      return Usage(absl::StrCat(directory, " does not say which adapter it is; give --adapter"));
    }
    found.push_back({directory, *named});
  }
  std::ranges::sort(found, {},
                    [](const Found& f) { return std::pair(f.named.adapter, f.named.number); });
  return found;
}

absl::StatusOr<int> Import(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(const std::vector<Found> found, FindDirectories(arguments));
  if (found.empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "DIRECTORY_INVALID",
                 "no adapter directory was found there");
  }
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  std::string adapter;
  store::v1::Run run;
  for (const Found& next : found) {
    const auto image = Read(next.directory, arguments);
    if (!image.ok()) return Annotate(image.status(), next.directory);
    if (next.named.adapter != adapter) {
      adapter = next.named.adapter;
      LORRY_RETURN_IF_ERROR(CheckAdapterName(adapter));
      LORRY_ASSIGN_OR_RETURN(run, PickRun(*client, adapter, arguments.Text("run")));
    }
    auto stored =
        Upload(context, *client, *image, client::MakeRef(adapter, run.number(), next.named.number));
    if (!stored.ok()) return Annotate(stored.status(), next.directory);
    if (context.json()) context.PrintJson(*stored);
  }
  return kOk;
}

absl::StatusOr<int> Export(Context& context, const Arguments& arguments) {
  LORRY_ASSIGN_OR_RETURN(fleet::Selector selector, fleet::ParseSelector(arguments.At(0)));
  const std::string& adapter = selector.adapter.value;
  // An adapter alone: the newest stored, which asks no orchestrator.
  if (arguments.At(0) == adapter) selector.kind = fleet::Selector::Kind::kNewest;
  LORRY_ASSIGN_OR_RETURN(client::Client * client, context.Client());
  LORRY_ASSIGN_OR_RETURN(const common::v1::VersionRef version,
                         context.Resolve(adapter, selector, arguments.Text("pool")));
  ProgressBar bar(absl::StrCat(adapter, " ", ToText(version)), context.bars());
  LORRY_ASSIGN_OR_RETURN(const common::v1::Version exported,
                         client->Export(version, arguments.At(1), arguments.Has("force"),
                                        [&](uint64_t done, uint64_t total) {
                                          if (total >= kBarBytesMin) bar.Update(done, total);
                                        }));
  bar.Clear();
  if (context.json()) {
    context.PrintJson(exported);
  } else {
    context.Print(absl::StrCat(context.Painted("✓", Colour::kGood), " ", adapter, " ",
                               ToText(exported.ref()), " in ", arguments.At(1), ", ",
                               Bytes(exported.image_bytes()), ", ", exported.digest(), "\n"));
  }
  return kOk;
}

const Option kRun{.name = "run",
                  .value = "current|new",
                  .help =
                      "the adapter's current run (a new one where there is none), or a new one, "
                      "which fences the process that had the old",
                  .kind = Kind::kChoice,
                  .fallback = "current"};
const Option kBaseModel{.name = "base-model-config",
                        .value = "FILE",
                        .help =
                            "config.json of the base model: fused qkv and gate_up projections "
                            "are split by it, shapes are checked"};
const Option kAdapterInFile{.name = "adapter-in-file",
                            .value = "NAME",
                            .help = "which adapter's tensors, where the file holds several"};

}  // namespace

std::vector<Verb> PublishVerbs() {
  return {
      {.name = "publish",
       .summary = "Stores a PEFT directory as a version",
       .details =
           "Names are made canonical, what engines cannot serve is refused with a reason, and "
           "the bytes travel over UCX, or gRPC where UCX does not reach. A lost connection "
           "is resumed. While a training publishes the adapter, publish under another name: a run "
           "takes each number once and in order, so that the training's own next number would be "
           "taken (VERSION_CONFLICT) or too low (VERSION_TOO_OLD), and --run new would fence it.",
       .positionals = {{"DIR", "adapter_config.json beside adapter_model.safetensors"}},
       .options = {{.name = "adapter",
                    .value = "NAME",
                    .help = "the adapter; created if it is new",
                    .required = true},
                   {.name = "version",
                    .value = "N|next",
                    .help =
                        "the version's number; next is one above what the run had or went on from",
                    .fallback = "next"},
                   kRun,
                   {.name = "wait",
                    .value = "stored|serving",
                    .help =
                        "return once it is durable at the store, or once it is decided and every "
                        "engine that can serve it does, or a minute after the decision if one "
                        "does and others are late: the line says how many do (at most "
                        "--timeout, by default 5m)",
                    .kind = Kind::kChoice,
                    .fallback = "stored"},
                   {.name = "pool",
                    .value = "NAME",
                    .help = "the pool that --wait serving watches; default the first by name that "
                            "follows what is published"},
                   kBaseModel,
                   kAdapterInFile},
       .examples = {"lorry publish out/step-7 --adapter policy --version 7 --wait serving",
                    "lorry publish out/final --adapter policy"},
       .run = Publish},
      {.name = "import",
       .summary = "Stores several PEFT directories, oldest first",
       .details =
           "Each directory's name says its number: v7, policy-v7, checkpoint-7, step-7 or 7. A "
           "directory that is no adapter itself stands for those right below it.",
       .positionals = {{"DIR", "adapters, or directories of them", false, true}},
       .options = {{.name = "adapter",
                    .value = "NAME",
                    .help = "the adapter; default what the directories' names say"},
                   kRun,
                   kBaseModel,
                   kAdapterInFile},
       .examples = {"lorry import runs/policy-v1 runs/policy-v2",
                    "lorry import out --adapter policy"},
       .run = Import},
      {.name = "export",
       .summary = "Writes a stored version as a PEFT directory",
       .details =
           "Every leaf and the digest are verified; the config is written as it was published.",
       .positionals = {{"ADAPTER[@VERSION]",
                        "policy (the newest), policy@12, policy@r2.12, policy@eval"},
                       {"DIR", "made if it is missing"}},
       .options = {{.name = "force",
                    .help = "replace the adapter that DIR holds",
                    .kind = Kind::kSwitch},
                   PoolOfLatest()},
       .examples = {"lorry export policy@best out/best"},
       .run = Export}};
}

}  // namespace lorry::cli
