// One thread that runs tasks in order: hashing beside a thread that must go on moving bytes.
// Internal to lib/transfer. Its queue is bounded by what its users have in flight.
#pragma once

#include <deque>
#include <functional>
#include <thread>

#include "lib/base/mutex.h"

namespace lorry::transfer {

class TaskThread {
 public:
  TaskThread() : thread_([this] { Run(); }) {}
  ~TaskThread() {  // runs what was posted, then ends
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  void Post(std::function<void()> task) LORRY_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

 private:
  void Run() {
    for (;;) {
      std::function<void()> task;
      {
        MutexLock lock(mutex_);
        while (tasks_.empty() && !stopping_) changed_.wait(mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ LORRY_GUARDED_BY(mutex_);
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lorry::transfer
