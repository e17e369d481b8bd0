#include "tests/contract/transfer/child.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/check.h"

extern char** environ;

namespace lorry::transfer {

Child::Child(std::vector<std::string> command) {
  int ends[2];
  LORRY_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (std::string& word : command) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  LORRY_CHECK(posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  output_ = ends[0];
}

Child::~Child() {
  Kill();
  close(output_);
}

std::string Child::ReadLine() {
  for (;;) {
    std::string line;
    char c = 0;
    while (read(output_, &c, 1) == 1 && c != '\n') line.push_back(c);
    // UCX writes its warnings to the standard output; they begin with a time in brackets.
    if (c != '\n' || line.empty() || line.front() != '[') return line;
  }
}

void Child::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

void Child::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace lorry::transfer
