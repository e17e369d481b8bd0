// Which rows of the machines' tables (docs/machines.md) were taken, and how often.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "services/engine_proxy/machine/tables.h"
#include "services/sync_orchestrator/machine/tables.h"

namespace lorry::sim {

class Coverage {
 public:
  // What a machine has taken, at the end of its life.
  void Add(const proxy::RowsTaken& taken);
  void Add(const sync::RowsTaken& taken);
  void Add(const Coverage& other);
  // A line for each table, and one for each row of it that was never taken.
  void Print() const;

 private:
  void Add(const std::string& table, const std::vector<uint64_t>& taken);

  std::map<std::string, std::vector<uint64_t>> taken_;  // by table, in its order
};

}  // namespace lorry::sim
