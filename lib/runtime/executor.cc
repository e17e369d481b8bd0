#include "lib/runtime/executor.h"

#include <utility>

#include "lib/runtime/thread_name.h"

namespace lorry::runtime {

Executor::Executor(Options options) : queue_(options.waiting_max) {
  for (int i = 0; i < options.threads; ++i) {
    threads_.emplace_back([this, name = options.name] {
      NameThisThread(name);
      Run();
    });
  }
}

Executor::~Executor() { Stop(); }

void Executor::Stop() {
  queue_.Close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run() {
  std::vector<Task> one;
  while (queue_.Drain(one, 1, std::nullopt)) {
    for (Task& work : one) work();
    one.clear();  // what the work captured is destroyed now, and not when the next work comes
  }
}

}  // namespace lorry::runtime
