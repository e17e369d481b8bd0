#include "services/engine_proxy/door/router.h"

#include <algorithm>
#include <utility>

#include "lib/base/check.h"
#include "services/engine_proxy/door/resolve.h"

namespace lorry::door {
namespace {

// Whether new requests may come to the name, so that the end of its last one is no news. A row that
// keeps requests waiting may wait for just that end, and does not say of which name; and what has no
// route is about to leave the engine, though an alias may still name it.
bool IsRouted(const proxy::DoorTable& table, const EngineName& name) {
  const bool is_awaited =
      std::any_of(table.rows.begin(), table.rows.end(), [](const proxy::DoorRow& row) {
        return row.mode == fleet::RowMode::kHeld || row.mode == fleet::RowMode::kLocked;
      });
  if (is_awaited || table.FindRoute(name) == nullptr) return false;
  return std::any_of(table.rows.begin(), table.rows.end(),
                     [&](const proxy::DoorRow& row) { return row.target == name; }) ||
         std::any_of(table.aliases.begin(), table.aliases.end(),
                     [&](const fleet::AliasRoute& alias) { return alias.target == name; });
}

uint32_t& Count(Admission::Counted& counted, const EngineName& name) {
  const auto it = std::find_if(counted.begin(), counted.end(),
                               [&](const auto& entry) { return entry.first == name; });
  return it != counted.end() ? it->second : counted.emplace_back(name, 0).second;
}

}  // namespace

Admission::Admission(Admission&& other) noexcept
    : router_(std::exchange(other.router_, nullptr)), counted_(std::move(other.counted_)) {}

Admission& Admission::operator=(Admission&& other) noexcept {
  if (this != &other) {
    Release();
    router_ = std::exchange(other.router_, nullptr);
    counted_ = std::move(other.counted_);
  }
  return *this;
}

void Admission::Release() {
  if (Router* router = std::exchange(router_, nullptr)) router->Release(counted_);
}

Router::Router(uint32_t max_live, std::function<void()> on_quiet)
    : max_live_(max_live),
      on_quiet_(std::move(on_quiet)),
      table_(std::make_shared<const proxy::DoorTable>()) {}

void Router::SetTable(proxy::DoorTable table) {
  auto fresh = std::make_shared<const proxy::DoorTable>(std::move(table));
  MutexLock lock(mutex_);
  table_.swap(fresh);
}

std::shared_ptr<const proxy::DoorTable> Router::table() const {
  MutexLock lock(mutex_);
  return table_;
}

Outcome Router::Resolve(const Ask& ask) {
  MutexLock lock(mutex_);
  if (table_->boot.empty() || table_->engine == fleet::EngineKind::kUnknown) {
    return Refused{503, "ENGINE_UNREACHABLE", "no engine answers behind this door", 2};
  }
  if (table_->asleep) {
    return Refused{503, "ENGINE_ASLEEP", "the engine sleeps: its memory is released", 2};
  }
  Admitted admitted;
  Admission::Counted counted;
  for (const std::string& reference : ask.adapters) {
    auto result = ResolveOne(*table_, reference, ask.min_version);
    if (auto* refused = std::get_if<Refused>(&result)) {
      if (ask.adapters.size() > 1) {
        refused->message =
            "lora_path[" + std::to_string(admitted.resolved.size()) + "]: " + refused->message;
      }
      return std::move(*refused);
    }
    if (auto* held = std::get_if<Held>(&result)) return std::move(*held);
    Resolved& resolved = std::get<Resolved>(result);
    Count(counted, resolved.name) += ask.requests_each;
    admitted.resolved.push_back(std::move(resolved));
  }
  if (live_ >= max_live_) {
    return Refused{429, "DOOR_FULL",
                   std::to_string(live_) + " requests are running, which is this door's limit", 1};
  }
  ++live_;
  for (const auto& [name, requests] : counted) in_flight_[name] += requests;
  admitted.admission = Admission(this, std::move(counted));
  return admitted;
}

Counts Router::Snapshot() const {
  MutexLock lock(mutex_);
  Counts counts{.revision = table_->revision, .live = live_};
  for (const auto& [name, count] : in_flight_) {
    if (name.empty()) {
      counts.base_in_flight = count;
    } else {
      counts.in_flight.emplace(name, count);
    }
  }
  return counts;
}

void Router::Release(const Admission::Counted& counted) {
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    LORRY_CHECK(live_ > 0);
    --live_;
    for (const auto& [name, requests] : counted) {
      const auto it = in_flight_.find(name);
      LORRY_CHECK(it != in_flight_.end() && it->second >= requests);
      it->second -= requests;
      if (it->second > 0) continue;
      in_flight_.erase(it);
      quiet = quiet || (!name.empty() && !IsRouted(*table_, name));
    }
  }
  if (quiet && on_quiet_) on_quiet_();
}

}  // namespace lorry::door
