// The inside of the orchestrator's machine: its state as plain members, shared by the files of this
// folder (see README.md). Private to the folder; one thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sync {

// Activated versions remembered per pool: more than any window that slots allow, few enough for one
// record.
inline constexpr size_t kHistoryLimit = 64;
// Refused versions remembered per pool, so that their watchers are told.
inline constexpr size_t kRefusedLimit = 16;
// Overrides whose answers are remembered per pool: an operator's retry comes within seconds, and
// pins are set by hand, a few a day.
inline constexpr size_t kRequestsLimit = 16;

// Unacknowledged hold sets remembered; an acknowledgement of an older one is waited for again.
inline constexpr size_t kHoldsSentLimit = 8;

struct PoolId {
  AdapterName adapter;
  PoolName pool;
  auto operator<=>(const PoolId&) const = default;
};

// What a member failed to load though others of its kind have it.
struct MemberFailure {
  uint32_t times = 0;  // in a row, for the backoff; until it loads this very name
  Tick until = 0;      // EXCLUDED
  std::string words;   // for people
};

struct Member {
  MemberId id;
  MemberRecord record;
  std::optional<SessionId> session;
  bool served = false;  // Desired may be sent: the roster names this session's journal, by a write
                        // of this term
  std::optional<fleet::Observed> observed;  // the last of this session, or of the last session
  Tick lost_at = 0;        // without a session since; counts as LOST lost_after_ms later
  fleet::Desired desired;  // the last sent, revision and all
  Tick sent_at = 0;
  EngineGroup group;                           // of the engine that it last reported
  std::pair<PoolName, EngineGroup> placed_in;  // of Core::places
  // What it failed to load though others of its kind have it: it is EXCLUDED for a while.
  std::map<EngineName, MemberFailure> failures;
  uint64_t built_at = 0;  // Core::changes when `desired` was last computed
};

// Why a version that waits does not begin to be synced.
enum class Wait {
  kNothing,    // there is none
  kAttaching,  // this reign is young, and members of the roster may yet attach
  kHoldPending,
  kRetryLater,
  kTooFewEngines,
  kNoSlot,
  kUnimplemented,
  // Verdicts leave too few engines for it.
  kRefused,
  kPoisoned,
  kStalls,
};
std::string_view ToString(Wait wait);

struct Pool {
  PoolRecord record;
  std::optional<SyncRecord> sync;
  std::optional<DecisionRecord> decision;
  RequestsRecord requests;
  Tick sync_began = 0;  // in this reign: deadlines begin again with it
  Tick decided_at = 0;
  Tick retry_at = 0;  // after an ABORT
  std::optional<Tick> no_slot_since;
  Wait wait = Wait::kNothing;
  std::string detail;  // for people, of `wait`

  const Activation* committed() const {
    return record.history.empty() ? nullptr : &record.history.back();
  }
};

struct Lease {
  LeaseRecord record;
  Tick expires_at = 0;
};

struct WatchState {
  VersionKey version;
  PoolName pool;
  Tick opened_at = 0;
  std::optional<WatchEvent> last;
  Tick told_at = 0;
  bool more_to_tell = false;  // its progress went on since, and waits for its pace
};

// Whether the engines of a group take a version, which some pool wants.
struct Question {
  VersionKey version;
  EngineGroup group;
  auto operator<=>(const Question&) const = default;
};
struct Try {
  Tick since = 0;
  // Since when another tries instead; it counts until the member has answered that, and has told
  // what became of its engine.
  std::optional<Tick> revoked;
  uint32_t deaths = 0;  // of it, on this member, when it was told to try; one more ends the try
  auto operator<=>(const Try&) const = default;
};
struct Trial {
  VersionInfo version;
  // Who wants the version: the whole pool (true), or the members of its running sync.
  std::map<PoolId, bool> wanted_by;
  std::map<MemberId, Try> tries;
  std::set<MemberId> slow;  // gave way to others
};

struct Core {
  Config config;
  Tick now = 0;
  Tick began_at = 0;
  MetaRecord meta;
  std::optional<MetaRecord> stored_meta;  // the fence of the next Ready

  // the store, as last heard
  bool store_known = false;
  std::map<AdapterName, AdapterInfo> adapters;
  std::map<VersionKey, VersionInfo> versions;
  std::map<std::pair<AdapterName, AliasName>, VersionKey> aliases;

  std::map<MemberId, Member> members;
  // Every member of the roster has attached in this reign, or has had the time to.
  bool gathered = false;
  std::map<SessionId, MemberId> sessions;
  std::map<PoolId, Pool> pools;
  std::map<std::string, Lease> leases;  // by record key
  std::map<VersionKey, VerdictRecord> verdicts;
  std::map<Question, Trial> trials;  // of all that is open
  // Members that have reported and are not DEAD, by what they have in common.
  std::map<std::pair<PoolName, EngineGroup>, std::set<MemberId>> places;
  std::map<WatchId, WatchState> watches;

  // holders at the store
  std::set<VersionKey> holds;
  Revision holds_revision;
  Revision holds_acked;
  std::map<Revision, std::set<VersionKey>> holds_sent;  // not acknowledged yet, the newest few
  std::set<VersionKey> held;                            // of `holds`, what the store acknowledged
  Tick holds_sent_at = 0;

  // Counts changes of what queues, documents and holds are computed from: everything durable, what
  // the store said, and boots, limits and rows of members. A planner that ran at this count has
  // nothing to do until it grows.
  uint64_t changes = 1;
  uint64_t queued_at = 0;  // the count at which AdvanceCatalogue last began
  uint64_t asked_at = 0;   // the count at which trials were last opened
  uint64_t held_at = 0;    // the count at which AdvanceHolds last ran; 0 after Desired was sent

  // what came of the last steps
  std::map<std::string, std::optional<RecordValue>> dirty;
  std::vector<Effect> effects;
  std::vector<Reply> replies;
  std::map<std::pair<VersionKey, fleet::Render>, EngineName>
      names;  // MakeEngineName hashes: once a name
  // Versions of equal bytes and number share a name.
  std::map<EngineName, std::set<VersionKey>> named;

  void Save(std::string key, RecordValue value) {
    ++changes;
    dirty[std::move(key)] = std::move(value);
  }
  void Erase(std::string key) {
    ++changes;
    dirty[std::move(key)] = std::nullopt;
  }
  void SavePool(const PoolId& id, const Pool& pool);
  void SaveSync(const PoolId& id, const Pool& pool);

  const EngineName& NameOf(const VersionInfo& version, fleet::EngineKind kind);
  // The same, to look at: what is reported under a name that is not remembered concerns nobody yet.
  EngineName NameIn(const VersionInfo& version, fleet::EngineKind kind) const;
  // The version's info from the store, or from a record that names it.
  const VersionInfo* FindVersion(const VersionKey& key) const;
  const AdapterInfo* FindAdapter(const AdapterName& adapter) const;
  int64_t Backoff(uint32_t failures) const;
};

struct Machine::State : Core {};

}  // namespace lorry::sync
