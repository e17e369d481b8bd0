// A simulated driver, as lib/runtime's: what arrives while records are written waits in a mailbox,
// a turn steps a batch of it and carries out one Ready. Writing takes time, finds the disk full or
// fails, and the process can die before, between and after.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/sim.h"

namespace lorry::sim {

template <typename Machine, typename Event>
class SimDriver {
 public:
  using Ready = decltype(std::declval<Machine&>().TakeReady());
  using Effect = typename decltype(Ready::effects)::value_type;

  struct Hooks {
    std::function<void(const Event&)> step;  // of the machine
    std::function<bool(Ready&)> write;       // false: the fence does not hold
    std::function<void(const Effect&)> run;
    std::function<void(Ready&, const std::vector<Event>&)>
        done;                         // replies; the whole batch is over
    std::function<void()> die;        // ends in Stop
    std::function<uint64_t()> crash;  // its chance at each stage
    Event tick;
    std::string who;
  };

  SimDriver(Sim& sim, Hooks hooks) : sim_(sim), hooks_(std::move(hooks)) {}

  void Start(Machine machine) {
    machine_ = std::move(machine);
    Schedule(0);  // it may have something to do before anything happens
  }
  void Stop() {
    machine_.reset();
    ++life_;
    inbox_.clear();
    batch_.clear();
    is_busy_ = is_scheduled_ = false;
    wake_at_ = timer_at_ = -1;
  }
  bool alive() const { return machine_.has_value(); }
  Machine& machine() { return *machine_; }
  const Machine& machine() const { return *machine_; }
  // All that it has decided is written down.
  bool IsAtRest() const { return alive() && !is_busy_ && !machine_->HasReady(); }

  void Post(Event event) {
    if (!alive()) return;
    inbox_.push_back(std::move(event));
    if (!is_busy_) Schedule(sim_.faults.turn_ms > 0 ? sim_.Latency(sim_.faults.turn_ms) : 0);
  }

 private:
  static constexpr size_t kBatchMost = 256;  // lib/runtime's own
  static constexpr int64_t kRetryMs = 500;   // the same
  static constexpr int64_t kSlowDiskMs = 3'000;
  // Of turns behind one that was woken and had nothing to do, and of others: a check takes a step.
  static constexpr uint64_t kWakesACheck = 4, kTurnsACheck = 32;

  // Runs `then` later, in this life only.
  template <typename Then>
  void In(int64_t delay, Then then) {
    sim_.queue.In(delay, [this, life = life_, then = std::move(then)]() mutable {
      if (life_ == life) then();
    });
  }

  void Schedule(int64_t delay) {
    if (std::exchange(is_scheduled_, true)) return;
    In(delay, [this] {
      is_scheduled_ = false;
      Turn();
    });
  }

  bool Dies() {
    if (!sim_.Chance(hooks_.crash())) return false;
    hooks_.die();
    return true;
  }

  void Turn() {
    if (is_busy_ || sim_.oracle.violated()) return;
    const size_t take = std::min(inbox_.size(), kBatchMost);
    batch_.assign(std::make_move_iterator(inbox_.begin()),
                  std::make_move_iterator(inbox_.begin() + static_cast<ptrdiff_t>(take)));
    inbox_.erase(inbox_.begin(), inbox_.begin() + static_cast<ptrdiff_t>(take));
    const bool is_due = wake_at_ >= 0 && wake_at_ <= sim_.now();
    if (is_due) {
      wake_at_ = -1;
      hooks_.step(hooks_.tick);
    } else if (was_quiet_ && ++turns_ % (was_due_ ? kWakesACheck : kTurnsACheck) == 0) {
      CheckSlept();
    }
    was_due_ = is_due;
    for (const Event& event : batch_) hooks_.step(event);
    is_busy_ = true;
    Write(machine_->TakeReady());
  }

  // Whatever time alone changes a machine asks to be woken for: where it did not, and had nothing to
  // do before, it has nothing to do now.
  void CheckSlept() {
    if (machine_->HasReady()) return;
    machine_->Step(sim_.now(), hooks_.tick);
    if (machine_->HasReady())
      sim_.oracle.Violate(13, hooks_.who + " has slept through what it should have done");
  }

  void Write(Ready ready) {
    const bool has_any = !ready.records.empty() || !ready.effects.empty();
    was_quiet_ = !has_any;
    if (has_any && Dies()) return;  // nothing was written
    if (ready.records.empty()) return CarryOut(std::move(ready));
    if (sim_.Chance(sim_.faults.disk_full)) {
      return In(kRetryMs, [this, ready = std::move(ready)]() mutable { Write(std::move(ready)); });
    }
    if (sim_.Chance(sim_.faults.disk_fails)) {
      // Whether it happened the process cannot tell, and ends.
      if (sim_.prng.Below(2) == 0) (void)hooks_.write(ready);
      return hooks_.die();
    }
    const bool is_slow = sim_.Chance(sim_.faults.disk_slow);
    const int64_t takes = sim_.faults.write_ms + (is_slow ? sim_.Latency(kSlowDiskMs) : 0);
    if (takes == 0) return Written(std::move(ready));
    In(takes, [this, ready = std::move(ready)]() mutable { Written(std::move(ready)); });
  }

  void Written(Ready ready) {
    if (!hooks_.write(ready)) return hooks_.die();
    CarryOut(std::move(ready));
  }

  void CarryOut(Ready ready) {
    const uint64_t life = life_;
    for (const Effect& effect : ready.effects) {
      if (Dies()) return;
      hooks_.run(effect);
      if (life_ != life) return;
    }
    hooks_.done(ready, batch_);
    if (life_ != life) return;
    is_busy_ = false;
    Wake(ready.wake_at);
    if (!inbox_.empty()) Schedule(0);
  }

  void Wake(std::optional<Tick> at) {
    wake_at_ = at.value_or(-1);
    if (wake_at_ < 0 || (timer_at_ > sim_.now() && timer_at_ <= wake_at_)) return;
    timer_at_ = wake_at_;
    sim_.queue.At(wake_at_, [this, life = life_, at = wake_at_] {
      if (life_ != life) return;
      if (timer_at_ == at) timer_at_ = -1;
      if (wake_at_ < 0) return;
      if (wake_at_ > sim_.now()) return Wake(wake_at_);
      if (!is_busy_) Schedule(0);
    });
  }

  Sim& sim_;
  Hooks hooks_;
  std::optional<Machine> machine_;
  uint64_t life_ = 0;
  std::deque<Event> inbox_;
  std::vector<Event> batch_;  // of the turn under way
  bool is_scheduled_ = false;
  bool is_busy_ = false;  // a Ready is being carried out
  // In the last turn it was woken when it asked to be; and had nothing to do.
  bool was_due_ = false, was_quiet_ = false;
  uint64_t turns_ = 0;
  Tick wake_at_ = -1;   // what the machine asked for last
  Tick timer_at_ = -1;  // the next timer
};

}  // namespace lorry::sim
