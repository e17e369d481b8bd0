#include "tests/sim/sim_door.h"

#include <algorithm>

namespace lorry::sim {

SimDoor::SimDoor(Sim& sim, SimEngine& engine, std::function<void(proxy::DoorReport)> report)
    : sim_(sim), engine_(engine), report_(std::move(report)) {
  tables_.fill(std::make_shared<const proxy::DoorTable>());
}

void SimDoor::Take(const proxy::DoorTable& table) {
  const auto shared = std::make_shared<const proxy::DoorTable>(table);
  for (size_t context = 0; context < kContexts; ++context) {
    sim_.queue.In(sim_.Latency(5), [this, context, shared] {
      if (tables_[context]->revision >= shared->revision) return;
      tables_[context] = shared;
      Report();
    });
  }
}

void SimDoor::Report() {
  proxy::DoorReport report;
  report.revision = std::min(tables_[0]->revision, tables_[1]->revision);
  if (sim_.plant != Plant::kCountsAreZero) report.in_flight = in_flight_;
  report_(std::move(report));
}

bool SimDoor::Request(const AdapterName& adapter, bool by_name, int64_t lasts_ms) {
  const proxy::DoorTable& table = *tables_[sim_.prng.Below(kContexts)];
  const proxy::DoorRoute* route = nullptr;
  if (by_name) {
    if (!table.routes.empty()) route = &table.routes[sim_.prng.Below(table.routes.size())];
  } else if (const proxy::DoorRow* row = table.FindRow(adapter);
             row != nullptr && row->mode == fleet::RowMode::kOpen) {
    route = table.FindRoute(row->target);
    if (route == nullptr) sim_.oracle.Violate(2, "an open row has a target without a route");
  }
  if (route == nullptr) return false;
  const EngineName name = route->name;
  if (!engine_.Begin(name, route->digest, table.boot)) return false;
  ++in_flight_[name];
  ++served_;
  Report();
  sim_.queue.In(lasts_ms, [this, name, boot = engine_.boot()] { End(name, boot); });
  return true;
}

void SimDoor::End(const EngineName& name, const BootId& boot) {
  engine_.End(name, boot);
  const auto it = in_flight_.find(name);
  if (it != in_flight_.end() && --it->second == 0) in_flight_.erase(it);
  Report();
}

}  // namespace lorry::sim
