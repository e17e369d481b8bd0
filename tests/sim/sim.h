// What every part of the simulated world shares: the clock with its queue of things to come, the
// seed's random numbers, the faults it drew, the trace, and the oracle. One thread; everything
// happens in the order of (tick, number).
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/prng.h"
#include "tests/sim/coverage.h"
#include "tests/sim/lives.h"
#include "tests/sim/oracle.h"

namespace lorry::sim {

constexpr int64_t kStageDeadlineMs = 20'000;  // of every policy that is drawn
constexpr int64_t kBarrierDeadlineMostMs = 10'000;
constexpr int64_t kDrainDeadlineMostMs = 5'000;
// In seeds of long pauses: beyond the stage deadline.
constexpr int64_t kLongDrainDeadlineMostMs = 40'000;
constexpr int64_t kFrameworkPauseMs = 20'000;  // the deadline of every proxy
constexpr int64_t kDrainMs = 30'000;           // likewise, within what a run waits for at its end

// Chances are per 1000; a seed draws its own of each, many of them zero (swarm testing).
struct Faults {
  uint64_t drop = 0;  // a message between a proxy and a leader
  uint64_t duplicate = 0;
  int64_t delay_ms = 5;        // a message takes up to so long, so that later ones overtake it
  uint64_t partition = 0;      // each second, for each proxy
  uint64_t proxy_crash = 0;    // at each stage of each Ready
  uint64_t proxy_kill = 0;     // each second
  uint64_t journal_loss = 0;   // when a proxy restarts
  uint64_t rot = 0;            // a directory has other bytes when a proxy restarts
  uint64_t leader_crash = 0;   // at each stage of each Ready
  uint64_t leader_kill = 0;    // each second
  uint64_t leader_zombie = 0;  // the killed leader goes on for a while beside its successor
  uint64_t engine_kill = 0;    // each second, for each engine
  uint64_t engine_slow = 0;    // a load takes up to a minute
  uint64_t answer_lost = 0;    // a load or unload happens, its answer does not come
  uint64_t breaks_off = 0;     // the connection of a load or probe breaks, the engine goes on
  uint64_t load_fails = 0;
  uint64_t probe_fails = 0;
  // A request's end is not counted by an SGLang engine: unloads of its name block.
  uint64_t counter_leaks = 0;
  uint64_t vanish = 0;           // each second, for each engine: a loaded name is gone
  uint64_t implicit_reload = 0;  // after an unload a late request loads it again
  uint64_t fetch_fails = 0;
  uint64_t fetch_away = 0;         // nobody answers it
  uint64_t delete_fails = 0;       // of a directory
  uint64_t look_fails = 0;         // each second, for each engine: the driver does not see it
  uint64_t look_ends = 0;          // of these: it takes it for gone
  uint64_t problem = 0;            // a boot has a wrong flag, seen for a while
  uint64_t other_limits = 0;       // a boot has other slots
  uint64_t killer_version = 0;     // a published version kills engines that load it
  uint64_t kills_at_use = 0;       // or answer the first token by it
  uint64_t refused_version = 0;    // or is refused by all of them
  uint64_t refused_somewhere = 0;  // or by some of them
  uint64_t unservable = 0;         // or no engine takes its rank
  uint64_t same_bytes = 0;         // a run begins with bytes and number of an earlier one
  uint64_t long_request = 0;       // a request lasts minutes
  uint64_t misfit_version = 0;     // a published version was trained on another base model
  uint64_t other_base = 0;         // an engine's boot serves another base model
  uint64_t children = 0;           // a request is of several, or of the base model
  uint64_t direct = 0;             // a client with a lease calls the engine itself
  uint64_t stale_hello = 0;        // a session begins with what was observed seconds before
  uint64_t ignored = 0;            // a boot applies nothing of a version: the base model answers
  int64_t turn_ms = 0;      // a driver's thread runs up to so much later, over all that waits
  uint64_t disk_slow = 0;   // a transaction takes seconds
  uint64_t disk_full = 0;   // and is tried again
  uint64_t disk_fails = 0;  // whether it happened is not known, and the process ends
  // An engine's end takes its pod with it: the proxy, its journal and its directories.
  uint64_t evict = 0;
  uint64_t words = 0;  // an engine says why it failed in a long text, and not in ASCII
  // No faults: what each of them takes at least, for tests that count them by the clock.
  int64_t message_ms = 0, write_ms = 0;
};

// Planted bugs, to see that the oracle catches them: in what surrounds the machines, and as a
// machine would have them, by changing what it hands out or is told.
enum class Plant {
  kNone,
  kCountsAreZero,
  kBootIsHidden,
  kFenceIsIgnored,
  kDecisionIsNotWritten,  // an orchestrator acts on what is not durable
  kLeaseIsNotWritten,     // an orchestrator promises what it forgets when it dies
  kLockIsNotWritten,      // a proxy acknowledges a lock that it forgets when it dies
  kLowerTermIsObeyed,     // a proxy takes a stale leader's document for a new one
  kRoutedIsUnloaded,      // a proxy unloads what its door still routes to
  kLagIsForgotten,        // a door does not know that its row is behind
  kMisfitIsLoaded,        // a proxy takes every adapter to be of its engine's base model
  kProbeIsBlind,          // a proxy sees every adapter answer otherwise than the base model
  kGoodbyeComesFirst,     // a proxy says goodbye while its door still answers
  kGapIsBlind,            // a proxy sees every adapter answer as its trainer does
  kPauseIsIgnored,        // a proxy takes an engine for paused that goes on
  kResumeIsIgnored,       // and one for resumed that stays paused
  kSleepIsNotWritten,     // a proxy forgets that a framework released the memory when it dies
  kSleepIsHidden,         // a proxy does not see that an engine sleeps
  kLooksAreNeverOld,  // a proxy believes a look at its engine that began before the engine was woken
  kApartIsNotWritten,    // a proxy forgets that a version differed from the base model when it dies
  kBindingIsNotWritten,  // a proxy forgets what a framework has bound when it dies
  kWaitIsNotReported,    // a door does not say which adapters its requests wait for
  kFrameworkIsIgnored,   // a proxy lets an engine go on though a framework paused it
  kFrameworkHasNoEnd,    // and never one that the framework forgets
  kDoorsAreNotBelieved,  // an orchestrator does not see that a door knows of later decisions
};

class Queue {
 public:
  Tick now() const { return now_; }
  void At(Tick at, std::function<void()> then) {
    heap_.push({at < now_ ? now_ : at, ++number_, std::move(then)});
  }
  void In(Tick delay, std::function<void()> then) { At(now_ + delay, std::move(then)); }
  // Runs everything up to `until`, inclusive.
  void RunUntil(Tick until) {
    while (!heap_.empty() && heap_.top().at <= until) {
      Entry entry = std::move(const_cast<Entry&>(heap_.top()));
      heap_.pop();
      now_ = entry.at;
      entry.then();
    }
    now_ = until;
  }

 private:
  struct Entry {
    Tick at;
    uint64_t number;
    std::function<void()> then;
    bool operator<(const Entry& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  Tick now_ = 0;
  uint64_t number_ = 0;
  std::priority_queue<Entry> heap_;
};

// With that chance, per 1000, and the same for the same text: it takes nothing from the seed's
// random numbers, so that what else happens in it stays.
inline bool IsOneIn(std::string_view text, uint64_t per_mille) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
  return per_mille > 0 && (hash >> 20) % 1000 < per_mille;
}

struct Sim {
  explicit Sim(uint64_t seed) : prng(seed), oracle(queue_now) {}

  Queue queue;
  std::function<Tick()> queue_now = [this] { return queue.now(); };
  Prng prng;
  Faults faults;
  Plant plant = Plant::kNone;
  int64_t drain_deadline_most_ms = kDrainDeadlineMostMs;
  bool narrates = false;  // prints what happens (narrate.h)
  uint64_t steps = 0;     // of all machines
  Coverage coverage;      // of those that have died
  Oracle oracle;
  Lives lives{oracle};
  uint64_t hash = 0xcbf29ce484222325ull;

  Tick now() const { return queue.now(); }
  bool Chance(uint64_t per_mille) { return per_mille > 0 && prng.Chance(per_mille); }
  // A small latency, or up to `most` ms.
  int64_t Latency(int64_t most) {
    return most <= 1 ? 1 : 1 + static_cast<int64_t>(prng.Below(most));
  }
  // Mixes what happens into the trace's hash.
  void Trace(std::string_view what, uint64_t value = 0) {
    for (const char c : what) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ull;
    hash =
        (hash ^ (value + static_cast<uint64_t>(now()) * 0x9e3779b97f4a7c15ull)) * 0x100000001b3ull;
  }
};

}  // namespace lorry::sim
