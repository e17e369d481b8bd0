#include "services/engine_proxy/door/router.h"

#include <algorithm>
#include <utility>

#include "lib/base/check.h"
#include "services/engine_proxy/door/resolve.h"

namespace lorry::door {
namespace {

// The same version has many spellings, and a text may be long.
constexpr size_t kKnownTexts = 256;

// Whether new requests may come to the name, so that the end of its last one is no news. A row that
// keeps requests waiting may wait for just that end, and does not say of which name; what has no
// route is about to leave the engine, though an alias may still name it; and what is loaded on
// demand may leave whenever it is idle.
bool IsRouted(const proxy::DoorTable& table, const EngineName& name) {
  const bool is_awaited =
      std::any_of(table.rows.begin(), table.rows.end(), [](const proxy::DoorRow& row) {
        return row.mode == fleet::RowMode::kHeld || row.mode == fleet::RowMode::kLocked;
      });
  if (is_awaited || table.FindRoute(name) == nullptr) return false;
  return std::any_of(
             table.rows.begin(), table.rows.end(),
             [&](const proxy::DoorRow& row) { return row.target == name && !row.on_demand; }) ||
         std::any_of(table.aliases.begin(), table.aliases.end(),
                     [&](const fleet::AliasRoute& alias) { return alias.target == name; });
}

// All of them have to be loaded at once; the engine's last slot is for the next version.
Resolution WaitForAll(Held away, std::set<AdapterName> adapters, uint32_t slots) {
  if (slots != 0 && adapters.size() > 1 && adapters.size() >= slots) {
    return Refused{400, "TOO_MANY_ADAPTERS",
                   "the request names " + std::to_string(adapters.size()) +
                       " adapters that are loaded on demand, and the engine has " +
                       std::to_string(slots) +
                       " slots, of which one is for the next version; send it in parts"};
  }
  away.demands = std::move(adapters);
  return away;
}

}  // namespace

Admission::Admission(Admission&& other) noexcept
    : router_(std::exchange(other.router_, nullptr)),
      counted_(std::move(other.counted_)),
      connections_(other.connections_) {}

Admission& Admission::operator=(Admission&& other) noexcept {
  if (this != &other) {
    Release();
    router_ = std::exchange(other.router_, nullptr);
    counted_ = std::move(other.counted_);
    connections_ = other.connections_;
  }
  return *this;
}

void Admission::EndConnection() {
  if (router_ != nullptr) router_->EndConnection(*this);
}

void Admission::Release() {
  if (Router* router = std::exchange(router_, nullptr)) router->Release(*this);
}

Demand::Demand(Demand&& other) noexcept
    : router_(std::exchange(other.router_, nullptr)),
      adapters_(std::exchange(other.adapters_, {})) {}

Demand& Demand::operator=(Demand&& other) noexcept {
  if (this != &other) {
    Release();
    router_ = std::exchange(other.router_, nullptr);
    adapters_ = std::exchange(other.adapters_, {});
  }
  return *this;
}

void Demand::Release() {
  if (Router* router = std::exchange(router_, nullptr)) router->EndWait(adapters_);
}

Router::Router(uint32_t max_connections, std::function<void()> on_change)
    : max_connections_(max_connections),
      on_change_(std::move(on_change)),
      table_(std::make_shared<const proxy::DoorTable>()),
      newest_(table_.get()) {}

void Router::SetTable(proxy::DoorTable table) {
  auto fresh = std::make_shared<const proxy::DoorTable>(std::move(table));
  MutexLock lock(mutex_);
  table_.swap(fresh);
  newest_ = table_.get();
  known_.clear();
  std::erase_if(in_flight_, [](const auto& entry) { return entry.second.all == 0; });
  const proxy::DoorTable& current = *table_;
  std::erase_if(last_admitted_,
                [&](const auto& entry) { return current.FindRoute(entry.first) == nullptr; });
}

std::shared_ptr<const proxy::DoorTable> Router::table() const {
  MutexLock lock(mutex_);
  return table_;
}

Resolution Router::Resolve(const Ask& ask) {
  MutexLock lock(mutex_);
  if (table_->boot.empty() || table_->engine == fleet::EngineKind::kUnknown) {
    return Refused{503, "ENGINE_UNREACHABLE", "no engine answers behind this door", 2};
  }
  // Also of an engine whose memory is released under the pause, as it takes that back before it goes on.
  if (table_->framework_pause_ms != 0 && !ask.needs_no_token) {
    return Held{
        Held::Kind::kPause,
        table_->framework_pause_ms,
        {503, "HELD_TOO_LONG", "a framework has paused the engine, and did not let it go on", 1}};
  }
  if (table_->asleep) {
    return Refused{503, "ENGINE_ASLEEP", "the engine sleeps: its memory is released", 2};
  }
  if (table_->updating) {
    return Refused{503, "ENGINE_UPDATING", "a framework is giving the engine other weights", 2};
  }
  std::vector<Resolved> resolved;
  Admission::Counted counted;
  std::optional<Held> away;  // of those that are, the one that may wait the shortest
  std::set<AdapterName> on_demand;
  for (size_t i = 0; i < ask.adapters.size(); ++i) {
    // A framework may give its adapter the base model's name.
    const bool names_base = ask.adapters[i].empty() && !ask.base_model.empty();
    const bool is_bound = names_base && table_->FindBinding(ask.base_model) != nullptr;
    auto result = ResolveOne(is_bound ? ask.base_model : ask.adapters[i], ask.min_version);
    if (auto* refused = std::get_if<Refused>(&result)) {
      if (ask.adapters.size() > 1)
        refused->message = "lora_path[" + std::to_string(i) + "]: " + refused->message;
      return std::move(*refused);
    }
    if (auto* held = std::get_if<Held>(&result)) {
      // Nothing is loaded for a request that waits for a row.
      if (held->demands.empty()) return std::move(*held);
      on_demand.insert(held->demands.begin(), held->demands.end());
      if (!away.has_value() || held->limit_ms < away->limit_ms) away = std::move(*held);
      continue;
    }
    Resolved& one = std::get<Resolved>(result);
    if (one.on_demand) on_demand.insert(AwaitedAs(one));
    Admission::Requests& requests = Count(counted, one.name);
    requests.all += ask.requests_each;
    if (!one.is_latest) requests.by_name += ask.requests_each;
    resolved.push_back(std::move(one));
  }
  if (away.has_value()) return WaitForAll(*std::move(away), std::move(on_demand), table_->slots);
  // One that is above the limit by itself would come again for ever: it is let in alone.
  if (connections_ > 0 && connections_ + ask.connections > max_connections_) {
    return Refused{429, "DOOR_FULL",
                   "requests have " + std::to_string(connections_) +
                       " connections to the engine, and this one takes " +
                       std::to_string(ask.connections) + " more; this door's limit is " +
                       std::to_string(max_connections_) +
                       " (--door-live-requests, or half of the process's descriptors)",
                   1};
  }
  return Admit(std::move(counted), std::move(resolved), ask.connections);
}

std::variant<Resolved, Held, Refused> Router::ResolveOne(
    const std::string& reference, const std::optional<MinVersion>& min_version) {
  if (min_version) return door::ResolveOne(*table_, reference, min_version);
  if (const auto it = known_.find(reference); it != known_.end()) return it->second;
  auto result = door::ResolveOne(*table_, reference, min_version);
  const Resolved* resolved = std::get_if<Resolved>(&result);
  if (resolved != nullptr && known_.size() < kKnownTexts) known_.emplace(reference, *resolved);
  return result;
}

Admission::Requests& Router::Count(Admission::Counted& counted, const EngineName& name) {
  Admission::InFlight::value_type* const of = &*in_flight_.try_emplace(name).first;
  const auto it = std::find_if(counted.begin(), counted.end(),
                               [&](const auto& entry) { return entry.first == of; });
  return it != counted.end() ? it->second : counted.emplace_back(of, Admission::Requests{}).second;
}

Admitted Router::Admit(Admission::Counted counted, std::vector<Resolved> resolved,
                       uint32_t connections) {
  ++live_;
  connections_ += connections;
  for (const auto& [of, requests] : counted) {
    of->second.all += requests.all;
    of->second.by_name += requests.by_name;
  }
  for (const Resolved& one : resolved) {
    if (one.on_demand) last_admitted_[one.name] = ++last_admission_;
  }
  return {Admission(this, std::move(counted), connections), std::move(resolved)};
}

Counts Router::Snapshot() const {
  MutexLock lock(mutex_);
  Counts counts{.revision = table_->revision, .live = live_};
  counts.sequence = ++sequence_;
  counts.last_admitted = last_admitted_;
  std::map<uint64_t, AdapterName> by_age;
  for (const auto& [adapter, waiters] : waiting_) by_age.emplace(waiters.since, adapter);
  for (auto& [since, adapter] : by_age) counts.waiting.push_back(std::move(adapter));
  for (const auto& [name, requests] : in_flight_) {
    if (name.empty()) {
      counts.base_in_flight = requests.all;
      continue;
    }
    if (requests.all > 0) counts.in_flight.emplace(name, requests.all);
    if (requests.by_name > 0) counts.by_name.emplace(name, requests.by_name);
  }
  return counts;
}

void Router::EndConnection(Admission& admission) {
  MutexLock lock(mutex_);
  LORRY_CHECK(admission.connections_ > 0);
  --admission.connections_;
  --connections_;
}

void Router::Release(const Admission& admission) {
  bool quiet = false;
  {
    MutexLock lock(mutex_);
    LORRY_CHECK(live_ > 0);
    --live_;
    connections_ -= admission.connections_;
    // Whoever has it shut waits for its last request.
    quiet = live_ == 0 && (table_->asleep || table_->updating);
    for (const auto& [of, ended] : admission.counted_) {
      auto& [name, requests] = *of;
      LORRY_CHECK(requests.all >= ended.all && requests.by_name >= ended.by_name);
      requests.all -= ended.all;
      requests.by_name -= ended.by_name;
      const bool is_last_of_latest = ended.all > ended.by_name && requests.all == requests.by_name;
      quiet = quiet || ((requests.all == 0 || is_last_of_latest) && !name.empty() &&
                        !IsRouted(*table_, name));
    }
  }
  if (quiet && on_change_) on_change_();
}

Demand Router::Wait(const std::set<AdapterName>& adapters) {
  bool any_first = false;
  {
    MutexLock lock(mutex_);
    for (const AdapterName& adapter : adapters) {
      Waiters& waiters = waiting_[adapter];
      if (waiters.count++ > 0) continue;
      waiters.since = ++last_wait_;
      any_first = true;
    }
  }
  if (any_first && on_change_) on_change_();
  return Demand(this, adapters);
}

void Router::EndWait(const std::set<AdapterName>& adapters) {
  bool any_last = false;
  {
    MutexLock lock(mutex_);
    for (const AdapterName& adapter : adapters) {
      const auto it = waiting_.find(adapter);
      LORRY_CHECK(it != waiting_.end() && it->second.count > 0);
      if (--it->second.count > 0) continue;
      waiting_.erase(it);
      any_last = true;
    }
  }
  if (any_last && on_change_) on_change_();
}

}  // namespace lorry::door
