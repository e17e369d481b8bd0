#include "tests/sim/sim_door.h"

#include <algorithm>
#include <variant>

#include "services/engine_proxy/door/resolve.h"

namespace lorry::sim {

SimDoor::SimDoor(Sim& sim, SimEngine& engine, std::function<void(proxy::DoorReport)> report)
    : sim_(sim), engine_(engine), report_(std::move(report)) {
  tables_.fill(std::make_shared<const proxy::DoorTable>());
}

void SimDoor::Take(const proxy::DoorTable& table) {
  const auto shared = std::make_shared<proxy::DoorTable>(table);
  if (sim_.plant == Plant::kLagIsForgotten) {
    for (proxy::DoorRow& row : shared->rows) row.behind = false;
  }
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

SimDoor::Answer SimDoor::Request(const AdapterName& adapter, bool by_name, int64_t lasts_ms) {
  const proxy::DoorTable& table = *tables_[sim_.prng.Below(kContexts)];
  std::string reference = adapter.value;
  if (by_name) {
    if (table.routes.empty()) return {{}, "NOT_LOADED"};
    reference = table.routes[sim_.prng.Below(table.routes.size())].name.value;
  }
  const auto outcome = door::ResolveOne(table, reference, std::nullopt);
  if (const auto* refused = std::get_if<door::Refused>(&outcome)) return {{}, refused->reason};
  if (const auto* held = std::get_if<door::Held>(&outcome)) return {{}, held->too_late.reason};
  const auto& resolved = std::get<door::Resolved>(outcome);
  const EngineName name = resolved.name;
  if (!engine_.Begin(name, resolved.digest, table.boot)) return {{}, "ENGINE_UNREACHABLE"};
  ++in_flight_[name];
  Report();
  sim_.queue.In(lasts_ms, [this, name, boot = engine_.boot()] { End(name, boot); });
  return {resolved.key, ""};
}

bool SimDoor::Routes(const EngineName& name) const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [&](const auto& table) { return table->FindRoute(name) != nullptr; });
}

void SimDoor::End(const EngineName& name, const BootId& boot) {
  engine_.End(name, boot);
  const auto it = in_flight_.find(name);
  if (it != in_flight_.end() && --it->second == 0) in_flight_.erase(it);
  Report();
}

}  // namespace lorry::sim
