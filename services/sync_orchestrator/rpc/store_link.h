// The orchestrator's side of the store: follows its watch, turns changes into events, keeps its
// holder set there.
//
// It keeps what the watch said, although the machine has it too: the picture comes in pieces, and
// the machine takes it whole; and calls that only look (metrics, GetStatus, whether a name exists)
// are answered from here, without a turn of the machine.
//
// Callbacks run on gRPC's threads and only translate and post; SetHolds runs on an executor of one
// thread, newest set wins; CatchUp has one of its own. Owned by main; the orchestrator outlives it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/mutex.h"
#include "lib/rpc/fresh_channel.h"
#include "lib/rpc/outage.h"
#include "lib/rpc/reconnecting_stream.h"
#include "lib/runtime/executor.h"
#include "lorry/store/v1/store.grpc.pb.h"
#include "services/sync_orchestrator/driver/orchestrator.h"
#include "services/sync_orchestrator/rpc/catch_up.h"

namespace lorry::sync {

class StoreLink final : public HoldsPort {
 public:
  // `holder` names this orchestrator's set at the store: "orchestrator:<cluster>".
  StoreLink(std::shared_ptr<rpc::FreshChannel> channel, std::string holder,
            Orchestrator& orchestrator);
  ~StoreLink() override;

  void Start();
  void Stop();
  bool connected() const;

  void SetHolds(HoldsMark mark, std::vector<VersionKey> versions) override;

  // What the watch said last.
  std::map<AdapterName, VersionKey> Newest() const;  // newest of each adapter's current run
  std::optional<AdapterInfo> Find(const AdapterName& adapter) const;
  bool Knows(const VersionKey& version, const PoolName& pool) const;
  // Why the store holds less than it was asked to; empty where nothing is known to be wrong.
  std::string WhyNotHeld() const;
  // Once it is done with OK, what the store had when it was asked for is in the orchestrator's
  // mailbox, and found here: a question that is posted afterwards is answered by it.
  void AskToCatchUp(CatchUp::Done done) { catch_up_.Ask(std::move(done)); }

 private:
  struct Holds {
    HoldsMark mark;
    std::vector<VersionKey> versions;
  };
  void OnMessage(const store::v1::WatchResponse& message);
  bool Take(const store::v1::WatchResponse& message);
  void OnClosed(const absl::Status& why);
  void Apply(const store::v1::Change& change) LORRY_REQUIRES(mutex_);
  void Forget(const AdapterName& adapter) LORRY_REQUIRES(mutex_);
  void Post(Event event);
  bool HasComeTo(const CatchUp::Mark& mark) const;
  void SendHolds();
  std::unique_ptr<store::v1::StoreService::Stub> Stub() const;

  const std::shared_ptr<rpc::FreshChannel> channel_;
  const std::string holder_;
  Orchestrator& orchestrator_;
  mutable Mutex mutex_;
  bool connected_ LORRY_GUARDED_BY(mutex_) = false;
  bool synced_ LORRY_GUARDED_BY(mutex_) = false;  // the present state was complete once
  uint64_t cursor_ LORRY_GUARDED_BY(mutex_) = 0;  // 0: the next watch begins with the present state
  std::string store_ LORRY_GUARDED_BY(mutex_);    // that the cursor is of
  bool full_ LORRY_GUARDED_BY(mutex_) = false;    // nothing more is taken from the watch at hand
  // Accepted since the watch was asked for: later than what that says.
  std::optional<HoldsMark> accepted_ LORRY_GUARDED_BY(mutex_);
  rpc::Outage outage_;             // of the watch
  rpc::Outage not_held_;           // sets that were refused, or not answered
  std::atomic<bool> cut_ = false;  // the last set left something out
  store::v1::WatchRequest request_ LORRY_GUARDED_BY(mutex_);  // of the watch at hand
  std::map<AdapterName, AdapterInfo> adapters_ LORRY_GUARDED_BY(mutex_);
  std::map<VersionKey, VersionInfo> versions_ LORRY_GUARDED_BY(mutex_);
  std::map<std::pair<AdapterName, AliasName>, VersionKey> aliases_ LORRY_GUARDED_BY(mutex_);
  std::optional<Holds> holds_ LORRY_GUARDED_BY(mutex_);  // waits to be sent
  runtime::Executor executor_;
  CatchUp catch_up_;
  rpc::ReconnectingReader<store::v1::WatchResponse> watch_;
};

}  // namespace lorry::sync
