// A service that `lorry up` runs: started with its own process group (a Ctrl-C at the terminal
// reaches only us), told to end when we die, its output in a log file. Used on main's thread, which
// must have SIGCHLD blocked or handled by itself.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorry::cli {

// The addresses that a service has written; nothing where it has not, or they are none.
std::optional<nlohmann::json> ReadReadyFile(const std::string& path);

class Child {
 public:
  struct Spec {
    std::string name;    // for people: "engine-30000"
    std::string binary;  // path
    std::vector<std::string> arguments;
    std::string ready_file;  // the child writes it; removed before the start
    std::string log_file;    // appended to
  };
  // FAILED_PRECONDITION BINARY_MISSING; INTERNAL when no process can be made.
  static absl::StatusOr<std::unique_ptr<Child>> Start(Spec spec);
  ~Child();  // kills what still runs, and waits for it
  Child(const Child&) = delete;

  const Spec& spec() const { return spec_; }
  pid_t pid() const { return pid_; }
  void Signal(int number);

  // Asks the kernel; once false it stays false.
  bool Running();
  // "ended with status 1", "was killed by signal 9"; only when it is not running.
  std::string HowItEnded() const;
  // What the ready file says; nothing before it is there.
  std::optional<nlohmann::json> ReadyFile() const { return ReadReadyFile(spec_.ready_file); }
  // The last lines of the log, for whoever asks why it ended.
  std::string LastWords() const;

 private:
  Child(Spec spec, pid_t pid) : spec_(std::move(spec)), pid_(pid) {}
  const Spec spec_;
  const pid_t pid_;
  std::optional<int> wait_status_;
};

}  // namespace lorry::cli
