// One thread that runs tasks and timers, one at a time: for components that are serial but not
// machines.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "lib/base/clock.h"
#include "lib/runtime/mailbox.h"

namespace lorry::runtime {

using Task = absl::AnyInvocable<void()>;

class Loop {
 public:
  using TimerId = uint64_t;
  // A task is small; a loop 4,096 behind is not keeping up.
  static constexpr size_t kTasksMax = 4096;

  explicit Loop(std::string name, size_t tasks_max = kTasksMax);
  ~Loop();  // Stop()

  // From any thread. RESOURCE_EXHAUSTED MAILBOX_FULL, UNAVAILABLE SHUTTING_DOWN.
  absl::Status Post(Task task);
  void PostAnswer(Task task);  // never refused while the loop lives

  // On the loop only.
  TimerId After(int64_t delay_ms, Task task);
  void Cancel(TimerId timer);  // a timer that has fired or was cancelled is no error

  bool IsCurrent() const { return std::this_thread::get_id() == thread_.get_id(); }
  // Runs what was posted, drops timers, joins. Not from the loop.
  void Stop();

 private:
  void Run();
  void RunDueTimers();

  const SteadyClock clock_;
  Mailbox<Task> mailbox_;
  std::map<std::pair<Tick, TimerId>, Task> timers_;  // the loop's own
  TimerId last_timer_ = 0;
  std::thread thread_;
};

}  // namespace lorry::runtime
