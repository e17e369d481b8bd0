// bench-sync: finds the Python client, which measures, and becomes it.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/context.h"
#include "clients/cli/verbs.h"
#include "lib/base/error.h"

namespace lorry::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kModule[] = "lorry.bench";

struct Python {
  std::string program;
  std::string path = {};  // PYTHONPATH that it needs; empty: none of ours
};

// The one that this program came with (the wheel's launcher names it), a checkout's, and whichever
// is found first.
std::vector<Python> Candidates() {
  std::vector<Python> found;
  if (const char* named = std::getenv("LORRY_PYTHON")) found.push_back({named});
  const fs::path folder = fs::path(OwnProgram()).parent_path();
  const fs::path checkout = (folder / "../../..").lexically_normal();
  if (fs::exists(checkout / "clients/python/src/lorry/bench"))
    found.push_back({checkout / ".venv/dev/bin/python", checkout / "clients/python/src"});
  if (fs::exists(folder / "python3")) found.push_back({folder / "python3"});
  found.push_back({"python3"});
  return found;
}

// `had` is this command's own PYTHONPATH.
void UsePath(const std::string& path, const std::string& had) {
  const char* between = path.empty() || had.empty() ? "" : ":";
  ::setenv("PYTHONPATH", absl::StrCat(path, between, had).c_str(), 1);
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Whether it can import the client with this command's other half. What it says of that is not shown.
bool HasClient(const Python& python) {
  std::vector<std::string> words = {python.program, "-c", absl::StrCat("import ", kModule)};
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, words[0].c_str(), &silent, nullptr, Pointers(words).data(), environ);
  posix_spawn_file_actions_destroy(&silent);
  if (failed != 0) return false;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

absl::StatusOr<int> BenchSync(Context& context, const Arguments& arguments) {
  constexpr int64_t kStepTimeoutMs = 300'000;
  std::vector<std::string> words = {
      "-m", kModule, arguments.At(0), absl::StrCat("--program=", OwnProgram()),
      absl::StrCat("--timeout=", context.TimeoutOr(kStepTimeoutMs) / 1000.0)};
  for (const char* option :
       {"engine", "base-model", "shared-dir", "rounds", "tokens", "requests"}) {
    const std::string value = arguments.Text(option);
    if (!value.empty()) words.push_back(absl::StrCat("--", option, "=", value));
  }
  if (context.json()) words.push_back("--json");
  const char* path = std::getenv("PYTHONPATH");
  const std::string had = path == nullptr ? "" : path;
  std::vector<std::string> tried;
  for (const Python& python : Candidates()) {
    UsePath(python.path, had);
    tried.push_back(python.program);
    if (!HasClient(python)) continue;
    words.insert(words.begin(), python.program);
    ::execvp(words[0].c_str(), Pointers(words).data());
    break;
  }
  return Error(absl::StatusCode::kFailedPrecondition, "PYTHON_CLIENT_MISSING",
               absl::StrCat("none of these has Lorry's Python client, which measures: ",
                            absl::StrJoin(tried, ", ")));
}

}  // namespace

std::vector<Verb> BenchVerbs() {
  return {
      {.name = "bench-sync",
       .summary = "Measures what adapter syncs cost on an engine of yours, three ways",
       .details =
           "Through Lorry, by a file and a POST at the engine, and, with --base-model, by weights "
           "that the adapter is merged into: each from the trainer's memory to the engine's first "
           "token. Says when merged weights would be the better choice. The engine should serve "
           "nobody meanwhile and have no door yet: a fleet of its own is put in front and taken "
           "away again, and so is what was loaded. Merged weights go by disk, and replace the "
           "engine's until they are loaded from --base-model again. It is written in "
           "Python: a checkout has it, as has each Python in which Lorry's wheels are installed. "
           "They are not on PyPI yet: `make packages` writes them to build/release/packages, and "
           "beside Debian's package lorry_client-*.whl alone is enough.",
       .positionals = {{"DIR", "adapter_config.json beside adapter_model.safetensors"}},
       .options = {{.name = "engine",
                    .value = "URL",
                    .help = "a running SGLang or vLLM: http://127.0.0.1:30000",
                    .required = true},
                   {.name = "base-model",
                    .value = "DIR",
                    .help = "the checkpoint that the engine was started with, readable here and "
                            "there; takes torch. None: merged weights are not measured"},
                   {.name = "shared-dir",
                    .value = "DIR",
                    .help = "where trainers write what engines read, for file + POST and merged "
                            "weights; default a temporary directory"},
                   {.name = "rounds",
                    .value = "N",
                    .help = "of each way, after one that does not count",
                    .kind = Kind::kNumber,
                    .fallback = "5"},
                   {.name = "tokens",
                    .value = "N",
                    .help = "that each request generates, to compare generation itself",
                    .kind = Kind::kNumber,
                    .fallback = "64"},
                   {.name = "requests",
                    .value = "N",
                    .help = "at once, for the same",
                    .kind = Kind::kNumber,
                    .fallback = "8"}},
       .examples = {"lorry bench-sync out/step-7 --engine 30000",
                    "lorry bench-sync out/step-7 --engine 30000 --base-model models/Qwen3-8B"},
       .run = BenchSync}};
}

}  // namespace lorry::cli
