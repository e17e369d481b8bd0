// A few threads for work that blocks: files, SQLite, HTTP to an engine. Work posts its result back
// to its owner's mailbox itself, by PostAnswer.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "lib/runtime/loop.h"
#include "lib/runtime/mailbox.h"

namespace lorry::runtime {

class Executor {
 public:
  struct Options {
    std::string name;
    int threads = 4;
    size_t waiting_max = 256;  // work that waits for a thread; more is refused
  };
  explicit Executor(Options options);
  ~Executor();  // Stop()

  // From any thread. RESOURCE_EXHAUSTED MAILBOX_FULL, UNAVAILABLE SHUTTING_DOWN; the work is
  // dropped then.
  absl::Status Submit(Task work) { return queue_.Post(std::move(work)); }
  // For work whose amount its owner bounds: never refused, and dropped only once stopped. A refusal
  // says nothing of what the work was to find out.
  void SubmitOwn(Task work) { queue_.PostAnswer(std::move(work)); }
  // Finishes what was submitted, joins.
  void Stop();

 private:
  void Run();
  Mailbox<Task> queue_;
  std::vector<std::thread> threads_;
};

}  // namespace lorry::runtime
