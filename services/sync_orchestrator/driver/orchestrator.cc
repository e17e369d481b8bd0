#include "services/sync_orchestrator/driver/orchestrator.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "lib/base/check.h"
#include "lib/base/error.h"
#include "lib/runtime/fault_point.h"
#include "services/sync_orchestrator/machine/desired.h"

namespace lorry::sync {
namespace {

// Longer than any turn over a thousand members, with a sync of the disk in it, takes; a fifth of
// what the machine allows a member that is silent (Config::lost_after_ms).
constexpr int64_t kTurnGapMaxMs = 1'000;

}  // namespace

Orchestrator::Orchestrator(kv::Store& store, const Clock& clock, Options options)
    : clock_(clock),
      options_(std::move(options)),
      journal_(store, "orchestrator/", &Decode, "meta") {}

absl::StatusOr<std::unique_ptr<Orchestrator>> Orchestrator::Create(kv::Store& store,
                                                                   const Clock& clock,
                                                                   Options options) {
  std::unique_ptr<Orchestrator> self(new Orchestrator(store, clock, std::move(options)));
  LORRY_ASSIGN_OR_RETURN(self->restored_, self->journal_.TakeOver());
  LORRY_ASSIGN_OR_RETURN(Machine machine,
                         Machine::Restore(self->options_.machine, self->restored_, clock.Now()));
  Orchestrator* const o = self.get();
  o->driver_ = std::make_unique<MachineDriver>(
      std::move(machine), clock,
      MachineDriver::Hooks{.tick = [] { return Event(TimePassed{}); },
                           .persist = [o](const Ready& ready) { return o->Persist(ready.records); },
                           .run = [o](Effect effect) { o->Run(std::move(effect)); },
                           .reply = [o](Reply reply) { o->Deliver(std::move(reply)); },
                           .on_fatal = o->options_.on_fatal},
      runtime::DriverOptions{.name = "orchestrator", .turn_gap_max_ms = kTurnGapMaxMs});
  return self;
}

Orchestrator::~Orchestrator() { Stop(); }

void Orchestrator::Connect(HoldsPort& holds, SyncObserver& observer) {
  holds_ = &holds;
  observer_ = &observer;
}

void Orchestrator::Start() {
  LORRY_CHECK(holds_ != nullptr && observer_ != nullptr);
  Follow(observer_->OnRestored(std::exchange(restored_, {}), clock_.Now()));
  driver_->Start();
}

void Orchestrator::Stop() { driver_->Stop(); }

absl::StatusOr<SessionId> Orchestrator::OpenSession(MemberId member, PoolName pool,
                                                    fleet::Observed observed, Contact contact,
                                                    std::shared_ptr<MemberSession> session) {
  const SessionId id = next_id_.fetch_add(1);
  {
    MutexLock lock(mutex_);
    sessions_.emplace(id, std::move(session));
  }
  absl::Status posted = Post(SessionOpened{id, std::move(member), std::move(pool),
                                           std::move(observed), std::move(contact)});
  LORRY_FAULT_POINT("orchestrator.attach.opened");
  if (posted.ok()) return id;
  MutexLock lock(mutex_);
  sessions_.erase(id);
  return posted;
}

void Orchestrator::CloseSession(SessionId session) {
  {
    MutexLock lock(mutex_);
    sessions_.erase(session);
  }
  PostAnswer(SessionLost{session});
}

absl::StatusOr<WatchId> Orchestrator::OpenWatch(VersionKey version, PoolName pool,
                                                std::shared_ptr<SyncWatcher> watcher) {
  const WatchId id = next_id_.fetch_add(1);
  {
    MutexLock lock(mutex_);
    watches_.emplace(id, OpenWatchEntry{std::move(watcher), version, pool, clock_.Now()});
  }
  absl::Status posted = Post(WatchOpened{id, std::move(version), std::move(pool)});
  if (posted.ok()) return id;
  MutexLock lock(mutex_);
  watches_.erase(id);
  return posted;
}

void Orchestrator::CloseWatch(WatchId watch) {
  {
    MutexLock lock(mutex_);
    if (watches_.erase(watch) == 0) return;  // its final event was sent: the machine forgot it too
  }
  PostAnswer(WatchClosed{watch});
}

absl::StatusOr<Reply> Orchestrator::WaitForReply(RequestId request, Event event, Tick deadline) {
  auto waiting = std::make_shared<runtime::Awaited<Reply>>();
  {
    MutexLock lock(mutex_);
    waiting_.emplace(request, waiting);
  }
  const absl::Status posted = Post(std::move(event));
  std::optional<Reply> reply;
  if (posted.ok()) reply = waiting->Take(deadline - clock_.Now());
  {
    MutexLock lock(mutex_);
    waiting_.erase(request);
  }
  LORRY_RETURN_IF_ERROR(posted);
  if (!reply.has_value()) {
    return Error(absl::StatusCode::kDeadlineExceeded, "",
                 "the orchestrator did not answer in time; ask again");
  }
  LORRY_RETURN_IF_ERROR(reply->status);
  return *std::move(reply);
}

absl::StatusOr<std::shared_ptr<const Status>> Orchestrator::GetStatus(Tick deadline) {
  return driver_->Ask([this](const Machine& machine) { return Snapshot(machine); }, deadline);
}

absl::Status Orchestrator::TakesTurn(Tick deadline) {
  return driver_->Ask([](const Machine&) { return true; }, deadline).status();
}

// --- the driver's thread

std::shared_ptr<const Status> Orchestrator::Snapshot(const Machine& machine) {
  std::shared_ptr<const Status> known = snapshot_.lock();
  if (known != nullptr && snapshot_steps_ == driver_->steps()) return known;
  auto snapshot = std::make_shared<const Status>(machine.GetStatus());
  snapshot_ = snapshot;
  snapshot_steps_ = driver_->steps();
  return snapshot;
}

absl::Status Orchestrator::Persist(const std::vector<Record>& records) {
  const Tick began = clock_.Now();
  LORRY_FAULT_POINT("orchestrator.record.before_sync");
  if (kv::Writes<DecisionRecord>(records)) LORRY_FAULT_POINT("orchestrator.decision.before_sync");
  LORRY_RETURN_IF_ERROR(journal_.Persist(records));
  LORRY_FAULT_POINT("orchestrator.record.synced");
  if (kv::Writes<SyncRecord>(records)) LORRY_FAULT_POINT("orchestrator.sync.synced");
  if (kv::Writes<DecisionRecord>(records)) LORRY_FAULT_POINT("orchestrator.decision.synced");
  if (kv::Writes<MemberRecord>(records)) LORRY_FAULT_POINT("orchestrator.attach.synced");
  Follow(observer_->OnPersisted(records, began, clock_.Now()));
  return absl::OkStatus();
}

void Orchestrator::Follow(const std::vector<SyncObserver::Key>& syncs) {
  for (const auto& [version, pool] : syncs) {
    const WatchId id = next_id_.fetch_add(1);
    {
      MutexLock lock(mutex_);
      watches_.emplace(id, OpenWatchEntry{nullptr, version, pool, clock_.Now()});
    }
    PostAnswer(WatchOpened{id, version, pool});
  }
}

void Orchestrator::Run(Effect effect) {
  std::shared_ptr<MemberSession> session;
  const auto find = [&](SessionId id) {
    MutexLock lock(mutex_);
    const auto it = sessions_.find(id);
    return it == sessions_.end() ? nullptr : it->second;
  };
  if (const auto* desired = std::get_if<SetDesired>(&effect)) {
    LORRY_FAULT_POINT("orchestrator.desired.before_send");
    SayWhatIsLeftOut(*desired);
    if ((session = find(desired->session))) session->SendDesired(desired->Whole());
    LORRY_FAULT_POINT("orchestrator.desired.sent");
  } else if (const auto* end = std::get_if<EndSession>(&effect)) {
    if ((session = find(end->session))) session->End(end->status);
  } else if (auto* holds = std::get_if<SetHolds>(&effect)) {
    holds_->SetHolds(holds->mark, std::move(holds->versions));
    LORRY_FAULT_POINT("orchestrator.holds.sent");
  } else if (const auto* notify = std::get_if<NotifyWatch>(&effect)) {
    Notify(*notify);
  } else if (const auto* changed = std::get_if<FootingChanged>(&effect)) {
    if (changed->footing == Footing::kSettled) {
      spdlog::info("what was lost is there again, or adopted; decisions go on");
    } else {
      spdlog::error("{}: {}", ToString(changed->footing), Explain(changed->footing));
    }
  }
}

void Orchestrator::SayWhatIsLeftOut(const SetDesired& desired) {
  const size_t wanted = CountWanted(desired);
  if (wanted <= kWantedMax) {
    crowded_.erase(desired.member);
  } else if (crowded_.insert(desired.member).second) {
    spdlog::warn(
        "member={} is to have {} versions, and is told of {}: the oldest that it need not keep are "
        "left out; a smaller keep of its adapters' policies wants fewer",
        desired.member.value, wanted, kWantedMax);
  }
}

void Orchestrator::Notify(const NotifyWatch& notify) {
  OpenWatchEntry entry;
  {
    MutexLock lock(mutex_);
    const auto it = watches_.find(notify.watch);
    if (it == watches_.end()) return;
    entry = it->second;
    if (notify.event.final) watches_.erase(it);
  }
  const Tick now = clock_.Now();
  if (entry.watcher == nullptr) {
    if (notify.event.final)
      observer_->OnEnded({entry.version, entry.pool}, notify.event.state, now);
    return;
  }
  entry.watcher->OnWatch(notify.event,
                         observer_->Times(entry.version, entry.pool, entry.opened_at, now));
}

void Orchestrator::Deliver(Reply reply) {
  std::shared_ptr<runtime::Awaited<Reply>> waiting;
  {
    MutexLock lock(mutex_);
    const auto it = waiting_.find(reply.request);
    if (it == waiting_.end()) return;  // its caller gave up
    waiting = it->second;
  }
  waiting->Set(std::move(reply));
}

}  // namespace lorry::sync
