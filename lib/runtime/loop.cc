#include "lib/runtime/loop.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "lib/base/check.h"
#include "lib/runtime/thread_name.h"

namespace lorry::runtime {
namespace {
// Between looks at the timers.
constexpr size_t kBatchMax = 64;
}  // namespace

Loop::Loop(std::string name, size_t tasks_max) : mailbox_(tasks_max) {
  thread_ = std::thread([this, name = std::move(name)] {
    NameThisThread(name);
    Run();
  });
}

Loop::~Loop() { Stop(); }

absl::Status Loop::Post(Task task) { return mailbox_.Post(std::move(task)); }

void Loop::PostAnswer(Task task) { mailbox_.PostAnswer(std::move(task)); }

Loop::TimerId Loop::After(int64_t delay_ms, Task task) {
  LORRY_CHECK(IsCurrent());
  const TimerId id = ++last_timer_;
  timers_.emplace(std::make_pair(clock_.Now() + std::max<int64_t>(delay_ms, 0), id),
                  std::move(task));
  return id;
}

void Loop::Cancel(TimerId timer) {
  LORRY_CHECK(IsCurrent());
  // Loops have few timers; a second index by id would cost more than the search.
  std::erase_if(timers_, [timer](const auto& entry) { return entry.first.second == timer; });
}

void Loop::Stop() {
  LORRY_CHECK(!IsCurrent());
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
}

void Loop::Run() {
  std::vector<Task> batch;
  while (true) {
    std::optional<std::chrono::milliseconds> wait;
    if (!timers_.empty()) {
      wait =
          std::chrono::milliseconds(std::max<Tick>(timers_.begin()->first.first - clock_.Now(), 0));
    }
    if (!mailbox_.Drain(batch, kBatchMax, wait)) break;
    for (Task& task : batch) task();
    RunDueTimers();
  }
  timers_.clear();
}

// One at a time from the front: a timer's task may add and cancel others.
void Loop::RunDueTimers() {
  const Tick now = clock_.Now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

}  // namespace lorry::runtime
