// A large fleet around the orchestrator's machine, without anything else: engines that do what
// Desired says after a while, a store that confirms every hold at once, and a clock of its own.
// It begins as a fleet does after a restart of its orchestrator: every engine serves version 1 of
// every adapter. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <string>
#include <vector>

#include "lib/base/prng.h"
#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sync {

class BenchFleet {
 public:
  BenchFleet(size_t engines, size_t adapters);

  // Stores the next version of one adapter, and lets time pass until its watch ends. What the watch
  // said last.
  WatchEvent Publish(size_t adapter);

  // CPU seconds inside of the machine, and events that it took, since the last call.
  struct Spent {
    double seconds = 0;
    uint64_t events = 0;
  };
  Spent TakeSpent() { return std::exchange(spent_, {}); }
  // What the machine keeps once all have attached.
  size_t bytes() const { return bytes_; }
  const Machine& machine() const { return *machine_; }
  Tick now() const { return now_; }

 private:
  // An engine's copy of one adapter is written only while that adapter changes.
  struct Engine {
    fleet::Observed observed;
    fleet::Desired desired;
    bool busy = false;  // its next step is in the queue
  };
  struct Due {
    Tick at;
    uint64_t number;
    size_t engine;
    bool operator<(const Due& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void Take(Event event);
  void Flush();
  void Run(const Effect& effect);
  void Work(size_t engine);
  void Go(const std::function<bool()>& until);

  std::vector<AdapterName> adapters_;
  std::vector<uint64_t> newest_;
  std::vector<Engine> engines_;
  std::optional<Machine> machine_;
  Prng prng_{1};
  Tick now_ = 1'000;
  std::optional<Tick> wake_at_;
  std::priority_queue<Due> due_;
  uint64_t numbers_ = 0;
  size_t batched_ = 0;
  std::optional<Revision> holds_;
  WatchId watch_ = 0;
  std::optional<WatchEvent> told_;
  Spent spent_;
  size_t bytes_ = 0;
};

}  // namespace lorry::sync
