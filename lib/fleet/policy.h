// AdapterPolicy: how one adapter is synced, kept and served (docs/SEMANTICS.md §7). The store keeps
// it, the orchestrator acts on it, a door sees the part that DoorRules carries. Plain values; the
// defaults are the documented ones.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>

#include "lib/fleet/desired.h"

namespace lorry::fleet {

enum class SyncMode { kRolling, kBarrier };
enum class SkipMode { kAllowed, kNever };
enum class FlushMode { kAuto, kAlways, kNever };
// Whether what is served stays loaded, or leaves while nobody asks for it and another needs the slot.
enum class ResidencyMode { kResident, kOnDemand };

// How many members must have a version before it may be decided: a count, or a share of the sync's
// members, rounded up. Never less than one.
struct MinEngines {
  bool is_share = true;
  uint32_t value = 50;  // percent, or engines
  auto operator<=>(const MinEngines&) const = default;

  uint32_t Of(uint32_t members) const;
};

// How many activated versions of the current lineage stay wanted, the active one among them.
struct KeepRule {
  enum class Kind { kStalenessPlusOne, kCount, kAll };
  Kind kind = Kind::kStalenessPlusOne;
  uint32_t count = 0;  // kCount
  auto operator<=>(const KeepRule&) const = default;
};

// Where a pool's `latest` comes from: what is published, another pool's decision, or an alias.
struct PoolSource {
  enum class Kind { kPublished, kPool, kAlias };
  Kind kind = Kind::kPublished;
  PoolName pool;    // kPool
  AliasName alias;  // kAlias
  auto operator<=>(const PoolSource&) const = default;
};

struct AdapterPolicy {
  std::map<PoolName, PoolSource> pools = {{PoolName("rollout"), PoolSource{}}};
  SyncMode mode = SyncMode::kRolling;
  MinEngines min_engines;
  SkipMode skip = SkipMode::kAllowed;
  InFlightMode in_flight = InFlightMode::kFinishOnOld;
  uint32_t max_staleness = 1;
  KeepRule keep;
  StaleMode stale = StaleMode::kRefuse;
  NoAdapterMode no_adapter = NoAdapterMode::kRefuse;
  PauseKind quiesce = PauseKind::kNone;
  FlushMode flush = FlushMode::kAuto;
  ProbeMode probe = ProbeMode::kAuto;
  uint32_t probe_gap_ppm = kProbeGapPpmDefault;  // as WantedVersion's
  int64_t stage_deadline_ms = 60'000;
  int64_t barrier_deadline_ms = 30'000;
  int64_t drain_deadline_ms = 600'000;
  ResidencyMode residency = ResidencyMode::kResident;
  int64_t demand_wait_ms = kDemandWaitMsDefault;
  uint64_t norm_limit = 0;      // largest Frobenius norm of one tensor; 0 = not judged
  uint64_t quota_bytes = 0;     // stored image bytes of all versions; 0 = not bounded
  uint32_t quota_versions = 0;  // stored versions; 0 = not bounded
  // The newest versions that stay stored, 0 = all; none: the store's default.
  std::optional<uint32_t> store_keep;
  auto operator<=>(const AdapterPolicy&) const = default;

  // Versions in the window; kAll is the largest number.
  uint32_t KeepCount() const;

  // How long a door may hold, and clients wait there. An engine that is to finish what it does has
  // the time to drain besides.
  int64_t HoldLimitMs() const;
};

}  // namespace lorry::fleet
