// What the orchestrator's machine is told: the store's watch, members' sessions, clients' and
// operators' calls, time. Plain values; drivers and RPC handlers build them, the simulator too.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lib/fleet/observed.h"
#include "lib/fleet/selector.h"
#include "services/sync_orchestrator/machine/records.h"

namespace lorry::sync {

// A driver's number for one Attach stream; never used twice in a process.
using SessionId = uint64_t;
using RequestId = uint64_t;  // a driver's number for one call; answered by exactly one Reply
using WatchId = uint64_t;    // a driver's number for one WatchSync

// --- the store

// One adapter as the store knows it.
struct AdapterInfo {
  AdapterName adapter;
  fleet::AdapterPolicy policy;
  RunId current_run;  // 0: no run was opened
  auto operator<=>(const AdapterInfo&) const = default;
};
struct AliasInfo {
  AdapterName adapter;
  AliasName alias;
  VersionKey target;
  auto operator<=>(const AliasInfo&) const = default;
};
// All that the store has, at one revision: how a watch of it begins. Nothing is decided or retired
// before the first one.
struct StoreListed {
  std::vector<AdapterInfo> adapters;
  std::vector<VersionInfo> versions;
  std::vector<AliasInfo> aliases;
  // The last holder set of this orchestrator that the store accepted; none: it never heard of it.
  std::optional<HoldsMark> remembered = {};
};
// An adapter was created, its policy changed, or a run of it was opened.
struct AdapterSet {
  AdapterInfo info;
};
struct AdapterDeleted {
  AdapterName adapter;
};
struct VersionStored {
  VersionInfo version;
};
struct VersionDeleted {
  VersionKey version;
};
struct AliasSet {
  AdapterName adapter;
  AliasName alias;
  std::optional<VersionKey> target;  // none: the alias was removed
};
// SetHolds was done.
struct HoldsAcked {
  Revision revision;
  std::vector<VersionKey> missing;  // of the set, what the store has not
};

// --- members
// How people and tools reach a member. The machine does nothing with it but keep it for as long as
// the member is on the roster.
struct Contact {
  std::string door_address;
  std::string admin_address;
  std::string admin_tls_name;
  std::string lorry_version;
};
struct SessionOpened {  // Attach's Hello
  SessionId session = 0;
  MemberId member;
  PoolName pool;
  fleet::Observed observed;  // journal and term are in it
  Contact contact = {};
};
struct SessionLost {
  SessionId session = 0;
};
struct MemberObserved {
  SessionId session = 0;
  fleet::Observed observed;
};

// --- clients and operators
using fleet::Selector;
// Resolve. A ttl of 0 releases: a selector with a number releases that version alone, any other all
// that the holder leases of the adapter in the pool, as `latest`, `newest` or an alias may stand
// for another version by now.
struct LeaseAsked {
  RequestId request = 0;
  Selector selector;
  PoolName pool;
  std::string holder;
  int64_t ttl_ms = 0;
};
struct OverrideSet {
  RequestId request = 0;
  AdapterName adapter;
  PoolName pool;
  std::optional<VersionKey> version;  // none lifts it
  // Whoever asks again with it, however late, gets the answer of the first time, and nothing is
  // done again. Empty: each call counts.
  std::string request_id = {};
};
enum class MemberMark { kExcluded, kIncluded, kDead };
struct MemberMarked {
  RequestId request = 0;
  MemberId member;
  MemberMark mark;
  std::string why;
};
// An operator has what is left of the fleet adopted, after the orchestrator or the store has lost
// what it remembered of it.
struct FleetAdopted {
  RequestId request = 0;
  // Where doors serve something else than the newest that is stored, the newest is synced.
  // Otherwise each such pool has to be pinned before (OverrideSet).
  bool newest = false;
};
// An operator wants engines to try the version again (`lorry retry`).
struct VerdictLifted {
  RequestId request = 0;
  VersionKey version;
};
struct WatchOpened {
  WatchId watch = 0;
  VersionKey version;
  PoolName pool;
};
struct WatchClosed {
  WatchId watch = 0;
};

struct TimePassed {};  // `wake_at` came

using Event =
    std::variant<StoreListed, AdapterSet, AdapterDeleted, VersionStored, VersionDeleted, AliasSet,
                 HoldsAcked, SessionOpened, SessionLost, MemberObserved, LeaseAsked, OverrideSet,
                 MemberMarked, FleetAdopted, VerdictLifted, WatchOpened, WatchClosed, TimePassed>;

}  // namespace lorry::sync
