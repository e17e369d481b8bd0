#include "services/engine_proxy/driver/wedge_watch.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "lib/base/clock.h"
#include "lib/base/error.h"
#include "lib/base/strings.h"
#include "lib/runtime/thread_name.h"

namespace lorry::proxy {
namespace {

// Between two looks at whether the command has ended.
constexpr int kPollMs = 50;

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Whole or not at all: a torn marker would run the command again.
bool Write(const std::string& path, const std::string& line) {
  const std::string beside = path + ".new";
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const std::string text = line + "\n";
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  close(fd);
  return written && rename(beside.c_str(), path.c_str()) == 0;
}

// /bin/sh -c COMMAND in a process group of its own, its output where this process logs, none of our
// other descriptors, signals as they are by default; -1 where it cannot be started. The command may
// leave an engine running, which writes for longer than this process lives: a pipe to this process
// would break under it, and what breaks ends a Python that prints.
pid_t Spawn(const std::string& command, std::vector<std::string> environment) {
  const size_t given = environment.size();
  for (char** own = environ; *own != nullptr; ++own) {
    const std::string_view entry(*own);
    const std::string_view name = entry.substr(0, entry.find('=') + 1);
    const bool is_given =
        std::any_of(environment.begin(), environment.begin() + static_cast<ptrdiff_t>(given),
                    [&](const std::string& e) { return e.starts_with(name); });
    if (!is_given) environment.emplace_back(entry);
  }
  std::vector<char*> env;
  for (std::string& entry : environment) env.push_back(entry.data());
  env.push_back(nullptr);
  std::string shell = "/bin/sh", flag = "-c", text = command;
  char* const arguments[] = {shell.data(), flag.data(), text.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = -1;
  if (posix_spawn(&child, shell.c_str(), &actions, &attributes, arguments, env.data()) != 0)
    child = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return child;
}

}  // namespace

absl::StatusOr<std::string> ParseOnWedged(std::string_view flag) {
  constexpr std::string_view kExec = "exec:";
  if (flag.empty()) return std::string();
  if (flag.starts_with(kExec) && flag.size() > kExec.size())
    return std::string(flag.substr(kExec.size()));
  return Error(absl::StatusCode::kInvalidArgument, "",
               absl::StrCat("--on-wedged is \"", ToAbsl(flag), "\"; write it as exec:COMMAND"));
}

WedgeWatch::WedgeWatch(Options options, Look look)
    : options_(std::move(options)),
      look_(std::move(look)),
      done_for_(FirstLineOf(options_.marker)) {}

WedgeWatch::~WedgeWatch() { Stop(); }

void WedgeWatch::Start() {
  thread_ = std::thread([this] {
    runtime::NameThisThread("on-wedged");
    Watch();
  });
}

void WedgeWatch::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

bool WedgeWatch::WaitFor(int64_t ms) {
  MutexLock lock(mutex_);
  if (!stopping_) wake_.wait_for(mutex_, std::chrono::milliseconds(ms));
  return !stopping_;
}

void WedgeWatch::Watch() {
  while (WaitFor(options_.look_every_ms)) {
    const std::optional<BootId> boot = look_();
    if (boot.has_value() && boot->value != done_for_) RunFor(*boot);
  }
}

void WedgeWatch::RunFor(const BootId& boot) {
  done_for_ = boot.value;
  if (!Write(options_.marker, boot.value)) {
    spdlog::warn(
        "on-wedged: {} cannot be written; a restart of this proxy may run the command again",
        options_.marker);
  }
  std::vector<std::string> environment = options_.environment;
  environment.push_back("LORRY_BOOT_ID=" + boot.value);
  spdlog::warn("on-wedged: boot {} is wedged, runs: {}", boot.value, options_.command);
  const pid_t child = Spawn(options_.command, std::move(environment));
  if (child < 0) {
    spdlog::error("on-wedged: the command cannot be started");
  } else if (const std::optional<int> status = Await(child); !status.has_value()) {
    spdlog::error("on-wedged: the command was killed, after at most {} ms", options_.limit_ms);
  } else if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) {
    spdlog::info("on-wedged: the command is done");
  } else {
    spdlog::error("on-wedged: the command failed, wait status {}", *status);
  }
}

std::optional<int> WedgeWatch::Await(pid_t child) {
  const SteadyClock clock;
  const Tick ends_at = clock.Now() + options_.limit_ms;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (clock.Now() < ends_at && WaitFor(kPollMs)) continue;
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    return std::nullopt;
  }
  return status;
}

}  // namespace lorry::proxy
