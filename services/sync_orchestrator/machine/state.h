// The inside of the orchestrator's machine: its state as plain members, shared by the files of this
// folder (see README.md). Private to the folder; one thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "services/sync_orchestrator/machine/changes.h"
#include "services/sync_orchestrator/machine/deadlines.h"
#include "services/sync_orchestrator/machine/machine.h"
#include "services/sync_orchestrator/machine/tables.h"

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

// The document that a member was sent, in parts: one for each adapter, shared by all members that
// want the same.
struct Document {
  struct Head {
    Term term;
    JournalId journal;
    BootId boot;
    auto operator<=>(const Head&) const = default;
  };
  PoolName pool;  // that the parts are of
  std::map<AdapterName, std::shared_ptr<const DesiredPart>> parts;
  std::optional<Head> head;  // as this session was told; none: nothing yet
  Revision revision;         // of the last sent
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
  Tick heard_at = 0;                        // when that came
  Contact contact;
  Tick paused_until = 0;  // as far as it has told: under a pause of Lorry's it can load nothing
  Tick lost_at = 0;       // without a session since; counts as LOST lost_after_ms later
  Document desired;
  EngineGroup group;                           // of the engine that it last reported
  std::pair<PoolName, EngineGroup> placed_in;  // of Core::places
  // What it failed to load though others of its kind have it: it is EXCLUDED for a while.
  std::map<EngineName, MemberFailure> failures;
};

// Why a version that waits does not begin to be synced.
enum class Wait {
  kNothing,    // there is none
  kAttaching,  // this reign is young, and members of the roster may yet attach
  kHoldPending,
  kRetryLater,
  kTooFewEngines,
  kNoSlot,
  kUnreachable,  // a member's door cannot be asked to hold
  kRecordsLost,  // nothing is decided before an operator is asked: Footing
  kStoreLost,
  kOverridden,   // the pool is pinned to another
  kNextVersion,  // the newest was passed over; the next that is published is synced
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
  // Where each member of the running sync stands, in the record's order; empty: not counted yet.
  // AWAY: it had the version when its session ended, which is not long ago.
  enum class Standing : uint8_t { kDropped, kRemaining, kAway, kLoaded };
  struct Tally {
    std::vector<Standing> members;
    uint32_t remaining = 0;  // loaded or not
    uint32_t away = 0;
    uint32_t loaded = 0;
    auto operator<=>(const Tally&) const = default;
  };
  Tally tally;
  // A sync in mode BARRIER, once enough engines have its version: what doors were asked. A new
  // reign begins without, and its documents end what they hold and lock.
  struct Barrier {
    Tick since = 0;               // they were asked to hold
    bool locks = false;           // they were asked to lock
    std::set<MemberId> waits_on;  // whose doors have not answered the last of both
    bool hold_ended = false;      // one ended its hold by its own deadline
    auto operator<=>(const Barrier&) const = default;
  };
  std::optional<Barrier> barrier;
  uint32_t barriers_failed = 0;  // in a row, for the backoff
  Tick decided_at = 0;           // of the last COMMIT
  Tick retry_at = 0;             // after an ABORT
  std::optional<Tick> no_slot_since;
  Wait wait = Wait::kNothing;
  std::string detail;  // for people, of `wait`
  // What members want of it now, each once, with the number of members.
  struct SharedPart {
    std::shared_ptr<const DesiredPart> part;
    size_t members = 0;
  };
  std::vector<SharedPart> parts;

  // What of a sync is only its own goes with it.
  void EndSync() {
    sync.reset();
    tally = {};
    barrier.reset();
  }
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
  bool is_new = true;
  bool more_to_tell = false;  // its progress went on since, and waits for its pace
  // DELIVERING: one that does not serve it yet, and since when that is told.
  std::optional<MemberId> until;
  std::optional<Tick> delivers_since;
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
  std::optional<Tick> revoked = {};
  auto operator<=>(const Try&) const = default;
};
struct Trial {
  VersionInfo version;
  // Who wants the version: the whole pool (true), or the members of its running sync.
  std::map<PoolId, bool> wanted_by;
  std::map<MemberId, Try> tries;  // under way, of those to whom GroupVerdict::leave was given
  // Gave way to others, and where the version stood there: until it stands elsewhere, nobody who
  // tries gives way to them again.
  std::map<MemberId, fleet::ResidencyState> slow;
  // Members whose engines may yet end because of the version though nobody told them to try.
  std::set<MemberId> at_risk;
  // Somebody tries, and has neither failed nor been told to stop.
  bool goes_on = false;
  // Of those looked at last nobody could try: only somebody of whom something changed may.
  bool nobody = false;
};

// What a pool had come to when a set of holds was made.
struct HeldFor {
  Epoch begun;    // the last epoch that it gave a sync
  Epoch decided;  // the last that has an end, COMMIT or ABORT
  std::optional<VersionKey> override_to;
  auto operator<=>(const HeldFor&) const = default;
};

struct Core {
  Config config;
  Tick now = 0;
  Tick began_at = 0;
  MetaRecord meta;
  std::optional<MetaRecord> stored_meta;  // the fence of the next Ready

  // the store, as last heard
  bool store_known = false;
  std::optional<HoldsMark> remembered;  // the last holder set that it accepted; none: none ever
  Footing footing = Footing::kUnread;   // as adoption.h has found it last
  std::map<AdapterName, AdapterInfo> adapters;
  std::map<VersionKey, VersionInfo> versions;
  std::map<std::pair<AdapterName, AliasName>, VersionKey> aliases;

  std::map<MemberId, Member> members;
  // Every member of the roster has attached in this reign, or has had the time to.
  bool gathered = false;
  std::set<MemberId> expected;  // those that have no session, and are likely to come (back)
  std::map<SessionId, MemberId> sessions;
  std::set<MemberId> leaving;  // those that say goodbye in the session that they have
  std::map<PoolId, Pool> pools;
  std::map<std::string, Lease> leases;  // by record key
  std::map<VersionKey, VerdictRecord> verdicts;
  std::set<VersionKey> deleted;      // by the store, and what is known of them not forgotten yet
  std::set<AdapterName> gone;        // likewise, or archived there: taken back they begin anew
  std::map<Question, Trial> trials;  // of all that is open
  // Members that have reported and are not DEAD, by what they have in common.
  std::map<std::pair<PoolName, EngineGroup>, std::set<MemberId>> places;
  std::map<WatchId, WatchState> watches;

  // holders at the store
  HoldsRecord holds_record;
  std::set<VersionKey> holds;
  // What else goes with a set: later decisions and pins make it a later one, so that the store
  // knows of them by its number.
  std::map<PoolId, HeldFor> holds_for;
  Revision holds_revision;  // of the last sent in this reign; 0: none yet
  Revision holds_acked;
  std::map<Revision, std::set<VersionKey>> holds_sent;  // not acknowledged yet, the newest few
  std::set<VersionKey> held;                            // of `holds`, what the store acknowledged
  Tick holds_sent_at = 0;

  mutable Work work;  // counted by queries too
  RowsTaken taken;
  Changes changed;
  uint64_t synced_at = 0;         // the count of changes at which AdvanceSyncs last began
  std::set<MemberId> unsent;      // whose documents differ from what they were told
  Deadlines<MemberId> resend;     // of documents that were not answered
  std::set<PoolId> without_slot;  // that wait for one: whatever changes may give it
  Deadlines<PoolId> sync_due;
  Deadlines<Question> trial_due;
  Deadlines<MemberId> standing_due;
  Deadlines<std::string> lease_due;  // by record key
  Deadlines<WatchId> watch_due;
  std::set<MemberId> unsaid;  // whose documents the next Ready sends

  // what came of the last steps
  std::map<std::string, std::optional<RecordValue>> dirty;
  std::vector<Effect> effects;
  std::vector<Reply> replies;
  std::map<std::pair<VersionKey, fleet::Render>, EngineName>
      names;                               // MakeEngineName hashes: once a name
  std::map<EngineName, VersionKey> named;  // the other way round

  // Both say what changed, too.
  void Save(const RecordKey& key, RecordValue value) {
    changed.Record(key);
    SaveQuietly(key, std::move(value));
  }
  // What depends on the record is said by the caller.
  void SaveQuietly(const RecordKey& key, RecordValue value) { dirty[key.text] = std::move(value); }
  void Erase(const RecordKey& key) {
    changed.Record(key);
    dirty[key.text] = std::nullopt;
  }
  // One that is not there yet begins above every epoch that its name may have had.
  Pool& PoolOf(const PoolId& id);
  void BeginAtFloor(Pool& pool) const;
  void SavePool(const PoolId& id, const Pool& pool);
  void SaveSync(const PoolId& id, const Pool& pool);

  const EngineName& NameOf(const VersionInfo& version, fleet::EngineKind kind);
  // The same, to look at: what is reported under a name that is not remembered concerns nobody yet.
  EngineName NameIn(const VersionInfo& version, fleet::EngineKind kind) const;
  // The version's info from the store, or from a record that names it.
  const VersionInfo* FindVersion(const VersionKey& key) const;
  std::vector<const LeaseRecord*> LeasesOf(const PoolId& id) const;
  std::vector<const LeaseRecord*> LeasesBelow(const std::string& key_prefix) const;
  const AdapterInfo* FindAdapter(const AdapterName& adapter) const;
  // Null where the adapter is not of this pool.
  const fleet::AdapterPolicy* FindPolicy(const PoolId& id) const;
  int64_t Backoff(uint32_t failures) const;
};

// Where the pool's sync stands.
SyncPhase PhaseOf(const Pool& pool);

struct Machine::State : Core {};

}  // namespace lorry::sync
