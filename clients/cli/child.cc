#include "clients/cli/child.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"

namespace lorry::cli {
namespace {

constexpr int kExecFailed = 127;          // as shells say it
constexpr size_t kLastWordsBytes = 1200;  // some eight lines

// Between fork and exec: system calls only, since other threads' locks are frozen here.
[[noreturn]] void Become(const char* binary, char* const* arguments, int log, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kExecFailed);  // it died before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv(binary, arguments);
  ::_exit(kExecFailed);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::Start(Spec spec) {
  if (::access(spec.binary.c_str(), X_OK) != 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "BINARY_MISSING",
                 absl::StrCat(spec.binary, " cannot be run: ", std::strerror(errno)));
  }
  std::error_code ignored;
  std::filesystem::remove(spec.ready_file, ignored);
  const int log = ::open(spec.log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) {
    return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_UNUSABLE",
                 absl::StrCat(spec.log_file, " cannot be written: ", std::strerror(errno)));
  }
  std::vector<char*> arguments = {spec.binary.data()};
  for (std::string& argument : spec.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  // posix_spawn has no way to ask for PR_SET_PDEATHSIG, without which a killed `lorry up` would
  // leave its services behind.
  const pid_t pid = ::fork();
  if (pid == 0) Become(spec.binary.c_str(), arguments.data(), log, parent);
  const int error = errno;
  ::close(log);
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("no new process: ", std::strerror(error)));
  }
  return std::unique_ptr<Child>(new Child(std::move(spec), pid));
}

Child::~Child() {
  if (!Running()) return;
  Signal(SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void Child::Signal(int number) {
  if (!wait_status_.has_value()) ::kill(pid_, number);
}

bool Child::Running() {
  if (wait_status_.has_value()) return false;
  int status = 0;
  const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
  if (ended == pid_ || (ended < 0 && errno == ECHILD)) wait_status_ = status;
  return !wait_status_.has_value();
}

std::string Child::HowItEnded() const {
  const int status = wait_status_.value_or(0);
  if (WIFSIGNALED(status)) return absl::StrCat("was killed by signal ", WTERMSIG(status));
  return absl::StrCat("ended with status ", WEXITSTATUS(status));
}

std::optional<nlohmann::json> ReadReadyFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  // Every address is a text; anything else is not one of ours.
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) return std::nullopt;
  }
  return json;
}

std::string Child::LastWords() const {
  std::ifstream file(spec_.log_file, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const auto size = static_cast<size_t>(file.tellg());
  const size_t length = std::min(size, kLastWordsBytes);
  std::string text(length, '\0');
  file.seekg(static_cast<std::streamoff>(size - length));
  file.read(text.data(), static_cast<std::streamsize>(length));
  if (length < size) text.erase(0, text.find('\n') + 1);  // the first line is cut
  return text;
}

}  // namespace lorry::cli
