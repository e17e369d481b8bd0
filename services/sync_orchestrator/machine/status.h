// What the machine knows, for GetStatus, the CLI and tests: values copied out, never read back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "services/sync_orchestrator/machine/effects.h"

namespace lorry::sync {

enum class MemberStanding { kJoining, kReady, kAsleep, kWedged, kExcluded, kLost, kDead };
std::string_view ToString(MemberStanding standing);

// The slot arithmetic of a member over all adapters of its pool (docs/SEMANTICS.md §6), by their
// policies and not by what is stored yet: of each adapter `keep` versions and one to load the next
// into, and one for every version that an alias or a lease names, as it falls out of the window in
// time.
struct SlotNeed {
  uint32_t needed = 0;
  uint32_t kept = 0;       // of `needed`, what requests may ask for: all but the ones loaded next
  std::string shortage;    // for people: the engine's registry holds fewer than `needed`; empty: no
  std::string batch_cost;  // for people: the engine batches fewer than `kept`; empty: it does not
  auto operator<=>(const SlotNeed&) const = default;
};

struct MemberStatus {
  MemberId member;
  PoolName pool;
  MemberStanding standing = MemberStanding::kLost;
  std::string reason;        // EXCLUDED, WEDGED, JOINING: why
  bool current = false;      // its rows and residencies are what is desired
  fleet::Observed observed;  // the last seen; empty journal when none in this reign
  Tick heard_at = 0;         // when that came; 0: none
  Contact contact;
  SlotNeed slot_need;  // with `observed`, unless declared dead
};

enum class SyncPhase { kIdle, kStaging, kHolding, kLocking };
std::string_view ToString(SyncPhase phase);

struct PoolStatus {
  AdapterName adapter;
  PoolName pool;
  SyncPhase phase = SyncPhase::kIdle;
  std::optional<Activation> committed;
  std::vector<Activation> history;  // the current lineage, oldest first
  std::optional<SyncRecord> sync;
  std::vector<VersionKey> pending;
  std::optional<VersionKey> about;       // what is synced now, or what waits last
  std::vector<MemberProgress> progress;  // with `about`
  std::optional<VersionKey> override_to;
  std::string waits_for;    // why a waiting version does not begin: TOO_FEW_ENGINES, NO_SLOT, ...
  std::string detail;       // for people
  bool is_blocked = false;  // it waits for something, and not for what an operator wants
  std::optional<DecisionRecord> last_decision;
};

// A verdict that keeps a group of engines from loading a version.
struct VerdictStatus {
  VersionKey version;
  EngineGroup group;
  Verdict verdict = Verdict::kRefused;
  std::string words;  // for people
};

struct LeaseStatus {
  LeaseRecord record;
  int64_t left_ms = 0;  // until it ends, unless it is renewed
};

struct Status {
  Term term;
  bool store_known = false;
  Footing footing = Footing::kUnread;
  std::vector<MemberStatus> members;
  std::vector<PoolStatus> pools;
  std::vector<LeaseStatus> leases;
  std::vector<VerdictStatus> verdicts;
};

}  // namespace lorry::sync
