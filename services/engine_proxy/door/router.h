// Resolves a request's adapter references and counts it, in one critical section.
//
// Thread-safe. Because resolving and counting share one mutex, every thread resolves by the new
// table from the moment SetTable returns: nothing further has to be waited for before a HELD row is
// acknowledged. The Router outlives every Admission. No sockets here; waiting at a HELD row is the
// caller's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "lib/base/mutex.h"
#include "services/engine_proxy/machine/door_table.h"

namespace lorry::door {

class Router;

// One request, counted under every name that it uses as so many requests as the engine makes of it,
// until destruction. Move-only.
class Admission {
 public:
  // Of a name, at the engine.
  struct Requests {
    uint32_t all = 0;
    uint32_t by_name = 0;  // of these, what named the version or an alias of it
  };
  using InFlight = std::map<EngineName, Requests>;
  using Counted = absl::InlinedVector<std::pair<InFlight::value_type*, Requests>, 1>;
  Admission() = default;
  Admission(Admission&& other) noexcept;
  Admission& operator=(Admission&& other) noexcept;
  ~Admission() { Release(); }
  void Release();
  // One of Ask::connections carries nothing of it any more, so that others may have it before its end.
  void EndConnection();
  bool held() const { return router_ != nullptr; }

 private:
  friend class Router;
  Admission(Router* router, Counted counted, uint32_t connections)
      : router_(router), counted_(std::move(counted)), connections_(connections) {}
  Router* router_ = nullptr;
  Counted counted_;  // in the router; distinct; the empty name is the base model
  uint32_t connections_ = 0;
};

// A request that waits until adapters are loaded, all of them at once, while this lives. Move-only.
class Demand {
 public:
  Demand() = default;
  Demand(Demand&& other) noexcept;
  Demand& operator=(Demand&& other) noexcept;
  ~Demand() { Release(); }
  void Release();
  const std::set<AdapterName>& adapters() const { return adapters_; }

 private:
  friend class Router;
  Demand(Router* router, std::set<AdapterName> adapters)
      : router_(router), adapters_(std::move(adapters)) {}
  Router* router_ = nullptr;
  std::set<AdapterName> adapters_;
};

// What one reference came to. The base model has an empty name and key.
struct Resolved {
  EngineName name;
  VersionKey key;
  Digest digest;
  Epoch epoch;                  // of the decision, where `latest` was asked; otherwise 0
  std::optional<uint32_t> lag;  // none: unknown, or outside of the lineage
  bool is_latest = false;  // with epoch 0 too: its row stands on another incarnation's decision
  // Of `latest`: what becomes of the request when its row flips.
  fleet::InFlightMode in_flight = fleet::InFlightMode::kFinishOnOld;
  bool on_demand = false;  // of `latest`: the adapter may leave the engine while nobody asks for it
  // By a framework's own name, which stands in key.adapter; on demand, too.
  bool is_binding = false;
  // For figures: names that frameworks count up would be figures without an end.
  std::string label() const {
    if (is_binding) return "lorry.binding";
    return name.empty() ? "@base" : key.adapter.value;
  }
  bool operator==(const Resolved&) const = default;
};

// X-Lorry-Min-Version: "81", a number of whatever run, or "r2.81", that version of run 2 or a newer
// one. All versions of a later run are newer, whatever their numbers: it took the earlier one's
// place, whose later versions were given up.
struct MinVersion {
  uint64_t number = 0;
  RunId run = {};  // 0: none was said
  bool operator==(const MinVersion&) const = default;
};

// Nearly every request has one.
using References = absl::InlinedVector<std::string, 1>;

struct Ask {
  References adapters;  // one a reference; empty text: none was named
  std::optional<MinVersion> min_version;
  uint32_t requests_each = 1;  // at the engine, for each reference
  uint32_t connections = 1;    // to the engine
  // As the body spells the engine's base model, where it names that and no adapter.
  std::string base_model = {};
  bool needs_no_token = false;  // and is answered while the engine is paused
};

struct Admitted {
  Admission admission;
  std::vector<Resolved> resolved;  // one for each of Ask::adapters
};

struct Refused {
  int status = 503;
  std::string reason;  // docs/ERRORS.md
  std::string message;
  int retry_after_s = 0;  // 0: no Retry-After
};

// Ask again after the next table, until all waits of its kind have lasted so long; then answer
// `too_late`.
struct Held {
  enum class Kind { kRow, kPause, kLoad };
  Kind kind = Kind::kRow;
  int64_t limit_ms = 0;
  Refused too_late;
  // Are loaded because of the request, and stay until it is admitted: see Router::Wait. Of a batch
  // also those that are there now.
  std::set<AdapterName> demands = {};
};

using Resolution = std::variant<Admitted, Held, Refused>;

struct Counts {
  Revision revision;                         // every thread resolves by this table
  std::map<EngineName, uint32_t> in_flight;  // at the engine; names without an entry have none
  std::map<EngineName, uint32_t> by_name;    // of these, what did not ask for `latest`; likewise
  uint32_t base_in_flight = 0;
  uint32_t live = 0;  // clients' requests, whatever they name and the engine makes of them
  // As in proxy::DoorReport.
  std::vector<AdapterName> waiting = {};
  std::map<EngineName, uint64_t> last_admitted = {};
  uint64_t sequence = 0;
};

class Router {
 public:
  // `on_change` is called without the lock, by whichever thread changed it: a name that may be
  // unloaded has no request left, as no row and no alias routes to it or it is loaded on demand; a
  // version that a row leaves has none left that asked for `latest`; nothing has while the table
  // admits nothing; requests begin to wait for an adapter, or none does any more.
  // At most `max_connections` are used at once, or more of them by one request alone.
  Router(uint32_t max_connections, std::function<void()> on_change);

  void SetTable(proxy::DoorTable table) LORRY_EXCLUDES(mutex_);
  std::shared_ptr<const proxy::DoorTable> table() const LORRY_EXCLUDES(mutex_);
  // Makes `seen`, which its caller keeps, the table. Only a new one costs the lock.
  void Follow(std::shared_ptr<const proxy::DoorTable>* seen) const LORRY_EXCLUDES(mutex_) {
    if (seen->get() != newest_.load()) *seen = table();
  }
  Resolution Resolve(const Ask& ask) LORRY_EXCLUDES(mutex_);
  // Of a request that is `Held` and `demands` adapters.
  Demand Wait(const std::set<AdapterName>& adapters) LORRY_EXCLUDES(mutex_);
  Counts Snapshot() const LORRY_EXCLUDES(mutex_);

 private:
  friend class Admission;
  friend class Demand;
  struct Waiters {
    uint32_t count = 0;
    uint64_t since = 0;  // counts adapters that began to be waited for
  };
  void EndConnection(Admission& admission) LORRY_EXCLUDES(mutex_);
  void Release(const Admission& admission) LORRY_EXCLUDES(mutex_);
  void EndWait(const std::set<AdapterName>& adapters) LORRY_EXCLUDES(mutex_);
  std::variant<Resolved, Held, Refused> ResolveOne(const std::string& reference,
                                                   const std::optional<MinVersion>& min_version)
      LORRY_REQUIRES(mutex_);
  Admission::Requests& Count(Admission::Counted& counted, const EngineName& name)
      LORRY_REQUIRES(mutex_);
  Admitted Admit(Admission::Counted counted, std::vector<Resolved> resolved, uint32_t connections)
      LORRY_REQUIRES(mutex_);

  const uint32_t max_connections_;
  const std::function<void()> on_change_;
  mutable Mutex mutex_;
  std::shared_ptr<const proxy::DoorTable> table_ LORRY_GUARDED_BY(mutex_);
  std::atomic<const proxy::DoorTable*> newest_;  // table_, and only to be compared
  // What texts came to by this table, which says it all; of those that came to something.
  std::unordered_map<std::string, Resolved> known_ LORRY_GUARDED_BY(mutex_);
  // Names whose last request has ended stay until the next table.
  Admission::InFlight in_flight_ LORRY_GUARDED_BY(mutex_);
  uint32_t live_ LORRY_GUARDED_BY(mutex_) = 0;
  uint32_t connections_ LORRY_GUARDED_BY(mutex_) = 0;
  std::map<AdapterName, Waiters> waiting_ LORRY_GUARDED_BY(mutex_);
  std::map<EngineName, uint64_t> last_admitted_ LORRY_GUARDED_BY(mutex_);
  uint64_t last_wait_ LORRY_GUARDED_BY(mutex_) = 0;
  uint64_t last_admission_ LORRY_GUARDED_BY(mutex_) = 0;
  mutable uint64_t sequence_ LORRY_GUARDED_BY(mutex_) = 0;
};

}  // namespace lorry::door
