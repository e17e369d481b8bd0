// A simulated orchestrator process: the machine, fenced writes to a store of records that all
// leaders share, and death at any stage of a Ready.
#pragma once

#include <functional>
#include <optional>

#include "services/sync_orchestrator/machine/machine.h"
#include "tests/sim/sim.h"

namespace lorry::sim {

// The records that every leader reads and writes; a transaction happens only if the meta record is
// the expected one.
struct SharedRecords {
  sync::Records records;
  bool Write(const std::optional<sync::MetaRecord>& fence, const std::vector<sync::Record>& changes,
             bool ignore_fence);
};

class SimLeader {
 public:
  struct Hooks {
    std::function<void(const sync::SetDesired&)> desired;
    std::function<void(const sync::EndSession&)> end_session;
    std::function<void(const sync::SetHolds&)> holds;
    std::function<void(const sync::NotifyWatch&)> notify;
    std::function<void(const sync::Reply&)> reply;
    std::function<void()> died;
  };

  SimLeader(Sim& sim, SharedRecords& shared, uint64_t id, Hooks hooks);

  void Start(const sync::Config& config);
  void Kill();
  bool alive() const { return machine_.has_value(); }
  uint64_t id() const { return id_; }
  void Step(const sync::Event& event);
  const sync::Machine& machine() const { return *machine_; }

 private:
  void Pump();
  void Perform(const sync::Effect& effect);
  void Wake(std::optional<Tick> at);
  bool Dies();

  Sim& sim_;
  SharedRecords& shared_;
  uint64_t id_;
  Hooks hooks_;
  std::optional<sync::Machine> machine_;
  Tick wake_at_ = -1;
};

}  // namespace lorry::sim
