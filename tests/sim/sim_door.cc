#include "tests/sim/sim_door.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "services/engine_proxy/door/report.h"

namespace lorry::sim {
namespace {

constexpr uint32_t kMostLive = 10'000;

}  // namespace

SimDoor::SimDoor(Sim& sim, SimEngine& engine, Hooks hooks)
    : sim_(sim),
      engine_(engine),
      hooks_(std::move(hooks)),
      router_(kMostLive, [this] { Report(); }) {}

void SimDoor::Take(proxy::DoorTable table) {
  if (sim_.plant == Plant::kLagIsForgotten) {
    for (proxy::DoorRow& row : table.rows) row.behind = false;
  }
  router_.SetTable(std::move(table));
  Report();
  // Held requests ask again.
  for (Waiting& waiting : std::exchange(held_, {})) {
    const Wish wish = waiting.wish;
    if (sim_.now() < waiting.until) Ask(wish, std::move(waiting));
  }
}

void SimDoor::Report() {
  door::Counts counts = router_.Snapshot();
  if (sim_.plant == Plant::kCountsAreZero) {
    counts.in_flight.clear();
    counts.by_name.clear();
  }
  if (sim_.plant == Plant::kWaitIsNotReported) counts.waiting.clear();
  hooks_.report(door::ReportOf(counts));
}

SimDoor::Answer SimDoor::Request(const Wish& wish) { return Ask(wish, {}); }

SimDoor::Answer SimDoor::Ask(const Wish& wish, Waiting again) {
  if (is_closed_) return {{}, "nobody listens"};
  door::Resolution outcome =
      router_.Resolve({{wish.adapters.begin(), wish.adapters.end()}, {}, wish.children});
  if (const auto* refused = std::get_if<door::Refused>(&outcome)) return {{}, refused->reason};
  if (const auto* held = std::get_if<door::Held>(&outcome)) {
    Waiting waiting{wish, sim_.now() + held->limit_ms};
    if (!held->demands.empty()) {
      if (again.demand.adapters() == held->demands) waiting = std::move(again);
      if (waiting.demand.adapters().empty()) {
        waiting.demand = router_.Wait(held->demands);
        sim_.queue.In(held->limit_ms, [this] { GiveUp(); });
      }
    }
    held_.push_back(std::move(waiting));
    return {{}, "HELD"};
  }
  return Begin(wish, std::get<door::Admitted>(std::move(outcome)));
}

void SimDoor::GiveUp() {
  std::erase_if(held_, [this](const Waiting& waiting) {
    const bool ends = !waiting.demand.adapters().empty() && sim_.now() >= waiting.until;
    if (ends) given_up_.insert(waiting.demand.adapters().begin(), waiting.demand.adapters().end());
    return ends;
  });
}

SimDoor::Answer SimDoor::Begin(const Wish& wish, door::Admitted admitted) {
  const BootId boot = router_.table()->boot;
  Answer answer;
  Live live{std::move(admitted.admission), {}, engine_.boot(), wish.children, {}};
  for (size_t i = 0; i < admitted.resolved.size(); ++i) {
    const door::Resolved& resolved = admitted.resolved[i];
    if (!engine_.Begin(resolved.name, resolved.digest, boot, wish.children)) {
      for (const EngineName& name : live.names) engine_.End(name, live.boot, wish.children);
      return {{}, "ENGINE_UNREACHABLE"};
    }
    live.names.push_back(resolved.name);
    if (resolved.name.empty()) continue;
    answer.served.push_back(resolved.key);
    if (i >= wish.adapters.size()) continue;
    hooks_.began(wish.adapters[i], resolved);
    if (wish.adapters[i] == resolved.key.adapter.value) live.on_latest.insert(resolved.name);
  }
  const uint64_t id = ++last_;
  live_.emplace(id, std::move(live));
  sim_.queue.In(wish.lasts_ms, [this, id] { End(id); });
  return answer;
}

std::string SimDoor::SomeName() {
  const auto table = router_.table();
  if (table->routes.empty()) return "";
  return table->routes[sim_.prng.Below(table->routes.size())].name.value;
}

// The engine's end comes first, the last bytes pass the door a little later.
void SimDoor::End(uint64_t id) {
  constexpr int64_t kFrozenMs = 100;
  const auto it = live_.find(id);
  if (it == live_.end()) return;
  if (engine_.is_frozen() && engine_.boot() == it->second.boot)
    return sim_.queue.In(kFrozenMs, [this, id] { End(id); });
  EndNow(id);
}

void SimDoor::EndNow(uint64_t id) {
  constexpr int64_t kLastBytesMs = 20;
  const auto it = live_.find(id);
  for (const EngineName& name : std::exchange(it->second.names, {}))
    engine_.End(name, it->second.boot, it->second.children);
  sim_.queue.In(sim_.Latency(kLastBytesMs), [this, id] { live_.erase(id); });
}

void SimDoor::AbortAll() {
  std::vector<uint64_t> ids;
  for (const auto& [id, live] : live_) ids.push_back(id);
  for (const uint64_t id : ids) EndNow(id);
}

uint32_t SimDoor::RunningOnLatest(const EngineName& name) const {
  return static_cast<uint32_t>(std::ranges::count_if(live_, [&](const auto& entry) {
    const Live& live = entry.second;
    return live.on_latest.contains(name) && !live.names.empty() && live.boot == engine_.boot();
  }));
}

void SimDoor::EngineDied() { live_.clear(); }

void SimDoor::Died() {
  // vLLM notices at once, SGLang looks every four seconds.
  const int64_t noticed_ms = engine_.limits().kind == fleet::EngineKind::kSglang ? 4'000 : 1;
  for (const auto& [id, live] : live_) sim_.queue.In(noticed_ms, [this, id = id] { End(id); });
}

}  // namespace lorry::sim
