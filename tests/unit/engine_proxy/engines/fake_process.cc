#include "tests/unit/engine_proxy/engines/fake_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cstdio>
#include <filesystem>

#include "lib/base/check.h"
#include "services/engine_proxy/engines/http_client.h"

extern char** environ;

namespace lorry::engines {
namespace {

const std::string kRoot = LORRY_SOURCE_DIR;
const std::string kPython = kRoot + "/.venv/dev/bin/python";

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts `command` and returns its first line on stdout.
std::string FirstLine(std::vector<std::string> command, const std::vector<std::string>& more,
                      pid_t& pid) {
  int ends[2];
  LORRY_CHECK(pipe(ends) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<std::string> environment(more);
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, nullptr,
                                Pointers(command).data(), Pointers(environment).data());
  LORRY_CHECK(error == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string line;
  char byte = 0;
  while (read(ends[0], &byte, 1) == 1 && byte != '\n') line += byte;
  close(ends[0]);
  return line;
}

}  // namespace

bool CanRunFakes() { return std::filesystem::exists(kPython); }

std::string TinyAdapters() {
  static const std::string* const folder = [] {
    const std::string script = "import sys; sys.path.insert(0, '" + kRoot +
                               "/tests'); from testing import engines; print(engines.tiny_model())";
    pid_t pid = -1;
    const std::string line = FirstLine({kPython, "-c", script}, {}, pid);
    int status = 0;
    waitpid(pid, &status, 0);
    LORRY_CHECK(status == 0);
    return new std::string(line + "/adapters");
  }();
  return *folder;
}

FakeProcess::FakeProcess(const std::string& kind, std::vector<std::string> arguments,
                         std::vector<std::string> environment)
    : kind_(kind), arguments_(std::move(arguments)), environment_(std::move(environment)) {
  Start();
}

FakeProcess::~FakeProcess() { Kill(); }

void FakeProcess::Start() {
  const std::string adapters = TinyAdapters();
  const std::string model = adapters.substr(0, adapters.rfind('/')) + "/model";
  std::vector<std::string> command{
      kPython, kRoot + "/tests/fakes/fake_" + kind_ + ".py", "--port", port_, "--model", model};
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  std::vector<std::string> environment(environment_);
  environment.push_back("LORRY_FAKE_DIES_WITH_PARENT=1");
  const std::string line = FirstLine(std::move(command), environment, pid_);
  const std::string prefix = "listening on ";
  LORRY_CHECK(line.rfind(prefix, 0) == 0);
  port_ = line.substr(prefix.size());
}

void FakeProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void FakeProcess::StartAgain() {
  Kill();
  Start();
}

void FakeProcess::Post(const std::string& path, const std::string& body) const {
  boost::asio::io_context io;
  const HttpClient client(io, {"127.0.0.1", port_});
  unsigned status = 0;
  boost::asio::co_spawn(io,
                        client.Call({.method = "POST", .path = path, .body = body, .bearer = ""},
                                    HttpClient::Clock::now() + std::chrono::seconds(20)),
                        [&](std::exception_ptr, absl::StatusOr<HttpReply> reply) {
                          if (reply.ok()) status = reply->status;
                        });
  io.run();
  LORRY_CHECK(status == 200);
}

}  // namespace lorry::engines
