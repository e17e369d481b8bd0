// A child process that a test may stop or kill; it never outlives the test.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lorry::transfer {

class Child {
 public:
  // Starts a program by posix_spawn: nothing of this process' threads or UCX gets into it.
  explicit Child(std::vector<std::string> command);
  ~Child();  // kills it if it lives
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The next line that it prints; empty once it has ended.
  std::string ReadLine();
  void Signal(int signal);
  void Kill();  // SIGKILL, and waits for its end
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
};

}  // namespace lorry::transfer
