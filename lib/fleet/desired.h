// Desired: the whole document that the orchestrator wants one member to make true. Latest wins;
// there are no commands.
//
// Plain values, shared by both machines and the simulator; lib/rpc converts them to lorry.sync.v1.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/clock.h"
#include "lib/base/ids.h"
#include "lib/fleet/engine_name.h"

namespace lorry::fleet {

// A door's route for one adapter (docs/SEMANTICS.md §1: OPEN serves, HELD keeps new requests
// waiting, LOCKED admits nothing until it learns a decision, CLOSED admits nothing because there is
// nothing verified to serve).
enum class RowMode { kClosed, kOpen, kHeld, kLocked };

// How an engine is brought to rest (quiesce.h).
enum class PauseKind { kNone, kAbort, kRetract, kInPlace, kWait, kKeep, kDrain };

struct DesiredPause {
  PauseKind kind = PauseKind::kNone;
  int64_t deadline_ms = 0;  // the proxy's own deadline, counted from the pause
  bool flush = false;       // the engine's caches are dropped while it is paused
  auto operator<=>(const DesiredPause&) const = default;
};

struct DesiredRow {
  AdapterName adapter;
  RowMode mode = RowMode::kClosed;
  Epoch epoch;        // OPEN: of the decision; HELD and LOCKED: of the sync that asks
  EngineName target;  // OPEN: what new requests of `latest` get; otherwise empty
  // The member's own deadline, counted from the moment it holds: HELD, and OPEN where it holds to
  // bring its engine to rest before it flips.
  int64_t hold_for_ms = 0;
  // The epoch of the last BARRIER: behind it nothing old is served. OPEN: until `target` is LOADED
  // a row goes on with this epoch or a later one, else closes. HELD, LOCKED: if older, it closes.
  Epoch serve_from;
  // The engine comes to rest before the row is LOCKED, or flips from one version to another; of
  // kind NONE: it need not.
  DesiredPause quiesce = {};
  auto operator<=>(const DesiredRow&) const = default;
};

// Lag of a version outside of the pool's current lineage (another run's, or never activated here).
inline constexpr uint32_t kLagNone = std::numeric_limits<uint32_t>::max();

// What a version that the engine lists must do before it is LOADED: nothing more, answer a token,
// or answer otherwise than the base model does; with kAuto the last where it is known that it must.
enum class ProbeMode { kAuto, kToken, kPresence, kDiffers };

// A mean of 0.1 nats takes importance weights to 1.1, half of the way to where PPO usually clips
// them (1.2). Arithmetic in bf16 stays well below (docs/PERFORMANCE.md).
inline constexpr uint32_t kProbeGapPpmDefault = 100'000;

struct WantedVersion {
  EngineName name;
  VersionKey key;
  Digest digest;
  VersionTraits traits;
  Render render = Render::kPlain;
  bool must = false;  // MUST stays loaded; MAY leaves when room is needed
  bool load = true;   // false: fetch and verify only; another member tries it on an engine first
  // How many of this member's engines had died of it when `load` was permitted. The permission ends
  // with the next death, which whoever gave it did not know of.
  uint32_t deaths_allowed = 0;
  // `load` is permitted on the boot that the document names and on no other: nobody of this
  // member's group has proven the version yet, and this boot alone is to try it.
  bool on_this_boot = false;
  uint32_t eviction_rank = 0;  // among MAY: the lowest leaves first
  uint32_t lag = kLagNone;     // versions activated after it in the current lineage
  ProbeMode probe = ProbeMode::kAuto;
  // kAuto: how far an engine's log-probabilities of the trainer's reference may be from the
  // trainer's in the mean, in millionths of a nat; 0: as far as they are.
  uint32_t probe_gap_ppm = kProbeGapPpmDefault;
  // Clients call the engine directly: the engine's own load is asked before it leaves.
  bool leased = false;
  // A row may stay OPEN on it while it is not LOADED: requests wait while it is loaded again.
  bool on_demand = false;
  auto operator<=>(const WantedVersion&) const = default;
};

// `policy@eval` at this door.
struct AliasRoute {
  AdapterName adapter;
  AliasName alias;
  EngineName target;
  auto operator<=>(const AliasRoute&) const = default;
};

enum class StaleMode { kRefuse, kHold, kTag };
enum class NoAdapterMode { kRefuse, kLatest, kBase };
// What becomes of a running request of `latest` when its row flips to another version.
enum class InFlightMode { kFinishOnOld, kAbort, kResumeOnNew };

// Engines compile or copy for seconds when they load, and others may wait before.
inline constexpr int64_t kDemandWaitMsDefault = 30'000;

// What the door must know of an adapter's policy.
struct DoorRules {
  AdapterName adapter;
  RunId current_run;  // explicit versions (`policy@12`) resolve within it
  uint32_t max_staleness = 1;
  StaleMode stale = StaleMode::kRefuse;
  NoAdapterMode no_adapter = NoAdapterMode::kRefuse;
  int64_t hold_limit_ms = 30'000;  // a request waits at most this long at a HELD row
  InFlightMode in_flight = InFlightMode::kFinishOnOld;
  // A request waits at most this long for an adapter that is loaded on demand.
  int64_t demand_wait_ms = kDemandWaitMsDefault;
  auto operator<=>(const DoorRules&) const = default;
};

struct Desired {
  Term term;
  Revision revision;  // counts documents within the term, per member
  JournalId journal;  // the journal this document is bound to; a proxy with another refuses it
  // The engine boot that it was computed for. Only WantedVersion::on_this_boot goes by it; all else
  // holds for whatever boot there is.
  BootId boot;
  std::vector<DesiredRow> rows;       // sorted by adapter
  std::vector<WantedVersion> wanted;  // sorted by name
  std::vector<AliasRoute> aliases;    // sorted by adapter, alias
  std::vector<DoorRules> rules;       // sorted by adapter
  auto operator<=>(const Desired&) const = default;
};

}  // namespace lorry::fleet
