// Runs the orchestrator's machine: events in from any thread, records into the kv store, effects
// out to the ports.
//
// Owned by main. The RPC layer calls in from gRPC's threads; every method is thread-safe and none
// waits for the machine except Ask..., GetStatus and TakesTurn, which wait until their deadline.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/base/mutex.h"
#include "lib/kv/record_journal.h"
#include "lib/kv/store.h"
#include "lib/runtime/awaited.h"
#include "lib/runtime/driver.h"
#include "services/sync_orchestrator/driver/ports.h"
#include "services/sync_orchestrator/driver/sync_observer.h"
#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sync {

class Orchestrator {
 public:
  struct Options {
    Config machine;
    // The process cannot go on (another leader writes, the disk failed): called once, on the
    // driver's thread.
    std::function<void(const absl::Status&)> on_fatal;
  };

  // Restores the machine from `store` and begins a new term. `store` and `clock` outlive the
  // orchestrator.
  static absl::StatusOr<std::unique_ptr<Orchestrator>> Create(kv::Store& store, const Clock& clock,
                                                              Options options);
  ~Orchestrator();

  // Before Start; both outlive the orchestrator.
  void Connect(HoldsPort& holds, SyncObserver& observer);
  void Start();
  void Stop();

  // RESOURCE_EXHAUSTED MAILBOX_FULL: the sender should come back.
  absl::Status Post(Event event) { return driver_->Post(std::move(event)); }
  // Facts, never refused: whoever has many of them asks first whether there is room.
  bool HasRoom() const { return driver_->waiting() < runtime::DriverOptions().mailbox_max; }
  void PostAnswer(Event event) { driver_->PostAnswer(std::move(event)); }

  absl::StatusOr<SessionId> OpenSession(MemberId member, PoolName pool, fleet::Observed observed,
                                        Contact contact, std::shared_ptr<MemberSession> session);
  void CloseSession(SessionId session);
  // What the member observes now. A report that was not taken in yet is replaced by it.
  void Report(SessionId session, fleet::Observed observed) {
    driver_->PostLatest(session, MemberObserved{session, std::move(observed)});
  }

  absl::StatusOr<WatchId> OpenWatch(VersionKey version, PoolName pool,
                                    std::shared_ptr<SyncWatcher> watcher);
  void CloseWatch(WatchId watch);

  // Sends an event that is answered by a Reply and waits for it: LeaseAsked, OverrideSet,
  // MemberMarked, FleetAdopted. Fills in `event.request`. DEADLINE_EXCEEDED: it may have happened;
  // ask again, all of them are idempotent.
  template <typename E>
  absl::StatusOr<Reply> Ask(E event, Tick deadline) {
    const RequestId request = next_id_.fetch_add(1);
    event.request = request;
    return WaitForReply(request, Event(std::move(event)), deadline);
  }

  // One snapshot for all who ask before the next event.
  absl::StatusOr<std::shared_ptr<const Status>> GetStatus(Tick deadline);
  // Whether the machine takes a turn by then; costs it nothing, however large the fleet.
  absl::Status TakesTurn(Tick deadline);
  // The time that ticks of a Status are of.
  Tick Now() const { return driver_->Now(); }

 private:
  using MachineDriver = runtime::Driver<Machine, Event>;
  struct OpenWatchEntry {
    std::shared_ptr<SyncWatcher> watcher;  // none: the observer's own
    VersionKey version;
    PoolName pool;
    Tick opened_at = 0;
  };

  Orchestrator(kv::Store& store, const Clock& clock, Options options);
  absl::Status Persist(const std::vector<Record>& records);
  std::shared_ptr<const Status> Snapshot(const Machine& machine);
  void Follow(const std::vector<SyncObserver::Key>& syncs);
  void Run(Effect effect);
  void SayWhatIsLeftOut(const SetDesired& desired);
  void Deliver(Reply reply);
  void Notify(const NotifyWatch& notify);
  absl::StatusOr<Reply> WaitForReply(RequestId request, Event event, Tick deadline);

  const Clock& clock_;
  const Options options_;
  kv::RecordJournal<RecordValue> journal_;  // driver's thread, once started
  Records restored_;                        // until Start
  // Driver's thread. Whoever reads the last snapshot keeps it: it is as large as the fleet.
  std::weak_ptr<const Status> snapshot_;
  uint64_t snapshot_steps_ = 0;  // of the driver, when it was made
  // Driver's thread: whose documents leave something out, which the log has said.
  std::set<MemberId> crowded_;
  std::unique_ptr<MachineDriver> driver_;
  HoldsPort* holds_ = nullptr;
  SyncObserver* observer_ = nullptr;
  std::atomic<uint64_t> next_id_{1};
  Mutex mutex_;
  std::map<SessionId, std::shared_ptr<MemberSession>> sessions_ LORRY_GUARDED_BY(mutex_);
  std::map<WatchId, OpenWatchEntry> watches_ LORRY_GUARDED_BY(mutex_);
  std::map<RequestId, std::shared_ptr<runtime::Awaited<Reply>>> waiting_ LORRY_GUARDED_BY(mutex_);
};

}  // namespace lorry::sync
