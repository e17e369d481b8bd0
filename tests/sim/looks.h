// What the machines say of themselves, looked at once a second: it is true, and written down.
#pragma once

#include <string>

#include "tests/sim/world.h"

namespace lorry::sim {

class Looks {
 public:
  explicit Looks(World& world) : world_(world), sim_(world.sim()) {}

  // At every proxy; then at what the leader says, if there is one.
  void AtProxies();
  void At(const SimLeader& leader, const sync::Status& status);

 private:
  void AtCurrent(const sync::MemberStatus& said);
  void AtWatches(const sync::Status& status);
  std::string WhyWaitIsNotSo(const sync::Status& status, const sync::PoolStatus& pool) const;
  void AtRecords(const std::string& who, const std::string& unwritten);

  World& world_;
  Sim& sim_;
};

}  // namespace lorry::sim
