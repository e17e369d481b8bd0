// WedgeWatch: runs the operator's command (--on-wedged=exec:COMMAND) once for each boot of the
// engine that is WEDGED, as only a restart of the engine helps it.
//
// A thread of its own looks every second and waits for the command, so that nothing else ever waits
// for it. Which boot the command was run for is on disk before it begins: a restart of the proxy
// does not run it again, and one in the moment between loses that run. Owned by main.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/ids.h"
#include "lib/base/mutex.h"

namespace lorry::proxy {

class WedgeWatch {
 public:
  struct Options {
    std::string command;                   // for /bin/sh -c, without the "exec:"
    std::vector<std::string> environment;  // NAME=value, added to this process's own
    std::string marker;                    // the file that names the last boot it was run for
    int64_t limit_ms = 60'000;             // then the command's process group is killed
    int64_t look_every_ms = 1'000;
  };
  // The boot that is WEDGED now, if one is; called on the watch's thread.
  using Look = std::function<std::optional<BootId>()>;

  WedgeWatch(Options options, Look look);
  ~WedgeWatch();

  void Start();
  void Stop();  // kills what still runs

 private:
  void Watch();
  void RunFor(const BootId& boot);
  // Exit status as waitpid gives it; nullopt: killed at the limit, or by Stop.
  std::optional<int> Await(pid_t child);
  bool WaitFor(int64_t ms);  // false: Stop was called

  const Options options_;
  const Look look_;
  std::string done_for_;  // the watch's thread
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The COMMAND of "exec:COMMAND"; empty for an empty flag. INVALID_ARGUMENT for anything else.
absl::StatusOr<std::string> ParseOnWedged(std::string_view flag);

}  // namespace lorry::proxy
