// A simulated door: two io_contexts that take a new table at different times, requests that are
// resolved (as the real door resolves them) and counted in one step, and the report once both
// resolve by it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "services/engine_proxy/machine/door_table.h"
#include "tests/sim/sim_engine.h"

namespace lorry::sim {

class SimDoor {
 public:
  // `report` is told revision and counts; called from the queue.
  SimDoor(Sim& sim, SimEngine& engine, std::function<void(proxy::DoorReport)> report);

  void Take(const proxy::DoorTable& table);
  // One client's request for `latest` of the adapter, or for any loaded name; it lasts `lasts_ms`.
  struct Answer {
    std::optional<VersionKey> served;
    std::string refused;  // the reason, or the one that ends its waiting
  };
  Answer Request(const AdapterName& adapter, bool by_name, int64_t lasts_ms);
  // Whether a request may still resolve to it.
  bool Routes(const EngineName& name) const;

 private:
  static constexpr size_t kContexts = 2;
  void Report();
  void End(const EngineName& name, const BootId& boot);

  Sim& sim_;
  SimEngine& engine_;
  std::function<void(proxy::DoorReport)> report_;
  std::array<std::shared_ptr<const proxy::DoorTable>, kContexts> tables_;
  std::map<EngineName, uint32_t> in_flight_;
};

}  // namespace lorry::sim
