// Runs one pure machine: one thread that drains a mailbox, steps the machine and carries out what
// it asks for.
//
//   turn:  drain a batch → Step each → TakeReady → persist records → run effects → send replies
//
// Records are durable before any effect is begun, replies go last, and a whole batch shares one
// persist, so that many events cost one fsync. Effects return nothing: their answers come back as
// events, by PostAnswer.
//
// A machine is any value with
//   void Step(Tick now, Event);
//   Ready TakeReady();
// where Ready is a struct of vectors `records`, `effects` and, if it has any, `replies`, and
// std::optional<Tick> `wake_at`: the driver steps the machine then, with the event that Hooks::tick
// makes. Each Ready states wake_at anew; none = not before the next event.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/runtime/mailbox.h"

namespace lorry::runtime {

// A machine may have no replies at all.
template <typename Ready>
struct RepliesOf {
  using Reply = std::monostate;
};
template <typename Ready>
  requires requires(Ready ready) { ready.replies; }
struct RepliesOf<Ready> {
  using Reply = typename decltype(Ready::replies)::value_type;
};

struct DriverOptions {
  std::string name;                // the thread's, in logs and `top`; at most 15 bytes
  size_t mailbox_max = 4096;       // a few events from each of 1,000 members
  size_t batch_max = 256;          // events that share one persist
  int64_t persist_retry_ms = 500;  // between tries while the disk is full; posts fill the mailbox
  // The longest time between two turns that counts as time for the machine; of a longer one the
  // rest does not. A process that was stopped, or had no CPU or disk, does not hold its own silence
  // against those whose deadlines it watches. An idle driver turns at least twice in this time.
  // None: the machine's ticks are the clock's.
  std::optional<int64_t> turn_gap_max_ms = {};
};

template <typename M, typename E = typename M::Event>
class Driver {
 public:
  using Event = E;
  using Ready = decltype(std::declval<M&>().TakeReady());
  using Effect = typename decltype(Ready::effects)::value_type;
  using Reply = typename RepliesOf<Ready>::Reply;

  // Called on the driver's thread only.
  struct Hooks {
    std::function<Event()> tick;
    // Makes the records durable, under their fence if the machine has one; not called without any.
    // RESOURCE_EXHAUSTED (nothing changed) is tried again and nothing else goes on meanwhile, which
    // the log says. Any other error ends the driver: another leader holds the term, or it is not
    // known whether the records last, and only a restart, which reads them again, can tell.
    std::function<absl::Status(const Ready&)> persist;
    std::function<void(Effect)> run;        // begins it, never blocks
    std::function<void(Reply)> reply = {};  // needed if the machine has replies
    // The driver has ended; the process should too.
    std::function<void(const absl::Status&)> on_fatal = {};
  };

  // `clock` outlives the driver; it gives the machine its ticks.
  Driver(M machine, const Clock& clock, Hooks hooks, DriverOptions options);
  ~Driver();  // Stop()

  void Start();
  // From any thread. RESOURCE_EXHAUSTED MAILBOX_FULL or UNAVAILABLE SHUTTING_DOWN.
  absl::Status Post(Event event) { return mailbox_.Post(std::move(event)); }
  // An answer to an effect, or a fact that must not be lost: never refused while the driver lives.
  void PostAnswer(Event event) { mailbox_.PostAnswer(std::move(event)); }
  // A report that the next one of the same key makes pointless: the newest that waits is taken.
  void PostLatest(uint64_t key, Event event) { mailbox_.PostLatest(key, std::move(event)); }
  // Events that wait, and looks.
  size_t waiting() const { return mailbox_.size(); }
  // Lets `look` see the machine, on the driver's thread, between steps: status pages, metrics.
  absl::Status Inspect(std::function<void(const M&)> look) {
    return mailbox_.Post(std::move(look));
  }
  // The machine's time, which its ticks are of: the clock's without what turn_gap_max_ms leaves out.
  // From any thread.
  Tick Now() const { return clock_.Now() - not_counted_ms_; }
  // For looks: how many events the machine has taken. What a look sees is the same while this is.
  uint64_t steps() const { return steps_; }
  // What `look` returns, waited for until `deadline` of the driver's clock; not from its thread.
  // DEADLINE_EXCEEDED: the machine is busy, or the driver ended.
  template <typename F>
  absl::StatusOr<std::invoke_result_t<F, const M&>> Ask(F look, Tick deadline);
  // Refuses new events, finishes the ones inside, joins.
  void Stop();

  // One turn over what waits, on the caller's thread: for tests, instead of Start. False when the
  // driver has ended.
  bool Turn() { return Turn(std::chrono::milliseconds(0)); }

 private:
  static constexpr bool kHasReplies = !std::is_same_v<Reply, std::monostate>;
  using Item = std::variant<Event, std::function<void(const M&)>>;
  bool Turn(std::optional<std::chrono::milliseconds> wait);
  bool CarryOut(Ready ready);
  absl::Status Persist(const Ready& ready);
  std::optional<std::chrono::milliseconds> UntilWake() const;
  Tick TakeTick();  // the machine's time of this turn
  void Run();

  M machine_;
  const Clock& clock_;
  const Hooks hooks_;
  const DriverOptions options_;
  Mailbox<Item> mailbox_;
  std::vector<Item> batch_;
  std::optional<Tick> wake_at_;
  Tick turned_at_;                           // by the clock
  std::atomic<int64_t> not_counted_ms_ = 0;  // of the clock, so far: turn_gap_max_ms
  Mutex mutex_;
  CondVar stop_wake_;
  bool stopping_ LORRY_GUARDED_BY(mutex_) = false;
  bool started_ = false;  // driver's thread: so are the next two
  bool ended_ = false;
  uint64_t steps_ = 0;
  std::thread thread_;
};

}  // namespace lorry::runtime

#include "lib/runtime/driver_impl.h"
