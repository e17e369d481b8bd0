// A simulated orchestrator process: the machine behind its driver, and fenced writes to a store of
// records that all leaders share.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "services/sync_orchestrator/machine/machine.h"
#include "tests/sim/sim_driver.h"
#include "tests/sim/sources.h"

namespace lorry::sim {

// The records that every leader reads and writes; a transaction happens only if the meta record is
// the expected one, and nobody has taken them over since (kv::RecordJournal).
struct SharedRecords {
  sync::Records records;
  sync::Records read;  // some of them, and of earlier ones, as some leader has read them
  Begun begun;
  uint64_t writer = 0;  // the leader that has taken them over
  // The highest of any records that there were: a clock, by which the next is taken where both
  // records and store are lost, has gone on since.
  uint64_t incarnation = 0;
  bool Holds(const std::optional<sync::MetaRecord>& fence) const;
  void Write(const std::vector<sync::Record>& changes);
  absl::StatusOr<sync::Records> Read();
  // The last that was given out in the pool, or in any of its name that is gone.
  Epoch EpochOf(const AdapterName& adapter, const PoolName& pool) const;
};

class SimLeader {
 public:
  struct Hooks {
    std::function<void(const sync::SetDesired&)> desired;
    std::function<void(const sync::EndSession&)> end_session;
    std::function<void(const sync::SetHolds&)> holds;
    std::function<void(const sync::NotifyWatch&)> notify;
    std::function<void(const sync::Reply&)> reply;
    std::function<void(const sync::Event&)> taken;  // what came of it is written down
    std::function<void()> died;
  };

  SimLeader(Sim& sim, SharedRecords& shared, uint64_t id, Hooks hooks);

  void Start(const sync::Config& config);
  void Kill();
  bool alive() const { return driver_.alive(); }
  uint64_t id() const { return id_; }
  void Post(sync::Event event) { driver_.Post(std::move(event)); }
  const sync::Machine& machine() const { return driver_.machine(); }
  // What the status says and the records do not, where all is written that it has decided.
  bool IsAtRest() const { return driver_.IsAtRest(); }
  std::string WhyNotWritten(const sync::Status& status) const;

 private:
  void Step(const sync::Event& event);
  sync::SessionOpened Unbelieved(sync::SessionOpened opened) const;  // a planted bug
  bool Write(sync::Ready& ready);
  void CheckSize(const std::vector<sync::Record>& records) const;
  // 11: whatever its members do, it ends by its stage deadline.
  void WatchSync(const std::string& key, const sync::SyncRecord& sync);
  void Perform(const sync::Effect& effect);
  void Finish(const sync::Ready& ready, const std::vector<sync::Event>& batch);

  Sim& sim_;
  SharedRecords& shared_;
  uint64_t id_;
  Hooks hooks_;
  std::map<std::string, Epoch> syncs_;  // by record key, as watched last
  uint64_t steps_ = 0;
  Sources sources_;
  SimDriver<sync::Machine, sync::Event> driver_;
};

}  // namespace lorry::sim
