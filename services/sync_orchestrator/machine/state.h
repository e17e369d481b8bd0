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

// Engine names that queries have made: more than versions wait at once.
inline constexpr size_t kMadeLimit = 64;

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
  uint32_t times = 0;  // in a row, for the backoff; back to 0 when it loads this very name
  Tick until = 0;      // it is EXCLUDED until then
  std::string words;   // for people
};

struct Member {
  MemberId id;
  MemberRecord record;
  std::optional<SessionId> session;
  // Whether Desired may be sent to it: a record of the roster that this term wrote names this
  // session's journal.
  bool served = false;
  std::optional<fleet::Observed> observed;  // the last of this session, or of the last session
  Tick heard_at = 0;                        // when that came
  Contact contact;
  // The last time at which it was known to be under a pause of Lorry's, in which it can load
  // nothing.
  Tick paused_until = 0;
  Tick lost_at = 0;  // without a session since then; it counts as LOST lost_after_ms later
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
  // Of a sync in mode BARRIER, once enough engines have its version: what the doors were asked for.
  // A new reign begins without it, and its documents have doors end what they hold and lock.
  struct Barrier {
    Tick since = 0;               // when they were asked to hold
    bool locks = false;           // whether they were asked to lock, too
    std::set<MemberId> waits_on;  // whose doors have not done what they were asked for last
    bool hold_ended = false;      // one door ended its hold by its own deadline
    auto operator<=>(const Barrier&) const = default;
  };
  std::optional<Barrier> barrier;
  uint32_t barriers_failed = 0;  // in a row, for the backoff
  Tick decided_at = 0;           // of the last COMMIT
  Tick retry_at = 0;             // after an ABORT
  std::optional<Tick> no_slot_since;
  Wait wait = Wait::kNothing;
  std::string detail;  // for people, of `wait`
  // What members should have of the adapter now: each different part once, with how many share it.
  struct SharedPart {
    std::shared_ptr<const DesiredPart> part;
    size_t members = 0;
  };
  std::vector<SharedPart> parts;

  // Forgets the sync, and what is kept for it alone.
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
  bool more_to_tell = false;  // members got further since, which is told at a pace
  // While DELIVERING: a member that does not serve it yet, and since when the state is DELIVERING.
  std::optional<MemberId> until;
  std::optional<Tick> committed_since;
};

// The question whether engines of this group take a version that some pool wants.
struct Question {
  VersionKey version;
  EngineGroup group;
  auto operator<=>(const Question&) const = default;
};
// A member's try to load the version.
struct Try {
  Tick since = 0;
  // Since when somebody else tries instead. The try counts until the member has answered the
  // document that told it so, and has told what became of its engine.
  std::optional<Tick> revoked = {};
  auto operator<=>(const Try&) const = default;
};
// What is under way to answer a question.
struct Trial {
  VersionInfo version;
  // Who wants the version: the whole pool (true), or the members of its running sync.
  std::map<PoolId, bool> wanted_by;
  std::map<MemberId, Try> tries;  // under way, of those to whom GroupVerdict::leave was given
  std::map<MemberId, Tick> left;  // since when: who said goodbye, and whose engine may end of it
  // Members that were slow and gave way to others, with the state that the version was in there.
  // While it is in the same state, nobody who tries gives way to them again.
  std::map<MemberId, fleet::ResidencyState> slow;
  // Members that load it, told to or not: their engines may yet end because of the version.
  std::set<MemberId> at_risk;
  // Somebody tries, and has neither failed nor been told to stop.
  bool goes_on = false;
  // The last search found nobody who could try: only members of whom something changed are looked
  // at.
  bool nobody = false;
};

// How far a pool's syncs and decisions were when a set of holds was made.
struct HeldFor {
  Epoch begun;    // the last epoch that a sync of it was given
  Epoch decided;  // the last epoch whose sync has ended, by COMMIT or ABORT
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
  std::optional<HoldsMark> remembered;  // the last set of holds that it accepted, if it ever did
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
  // Versions that the store has deleted, of which something is remembered here still.
  std::set<VersionKey> deleted;
  // Adapters likewise, or archived at the store: one that is taken back begins anew.
  std::set<AdapterName> gone;
  std::map<Question, Trial> trials;  // of all questions that are open
  // Members that have reported and are not DEAD, by what they have in common.
  std::map<std::pair<PoolName, EngineGroup>, std::set<MemberId>> places;
  std::map<WatchId, WatchState> watches;

  // holders at the store
  HoldsRecord holds_record;
  std::set<VersionKey> holds;
  // What the last set of holds stands for besides. A later decision or pin makes a set with a
  // higher number, even of the same versions, so that the store's number is never behind the
  // decisions.
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
  std::set<PoolId> without_slot;  // they wait for a slot, which any change may free
  Deadlines<PoolId> sync_due;
  Deadlines<Question> trial_due;
  Deadlines<MemberId> standing_due;
  Deadlines<std::string> lease_due;  // by record key
  Deadlines<WatchId> watch_due;
  std::set<MemberId> unsaid;  // to whom the next Ready sends their documents

  // what came of the last steps
  std::map<std::string, std::optional<RecordValue>> dirty;
  std::vector<Effect> effects;
  std::vector<Reply> replies;
  // Engine names that were made: MakeEngineName hashes, so that each is made only once.
  std::map<std::pair<VersionKey, fleet::Render>, EngineName> names;
  std::map<EngineName, VersionKey> named;  // the other way round
  // Of queries for others: what waits is asked for again and again.
  struct MadeName {
    Digest digest;
    EngineName name;
  };
  mutable std::map<std::pair<VersionKey, fleet::Render>, MadeName> made;

  // Save and Erase also note in `changed` what depends on the record.
  void Save(const RecordKey& key, RecordValue value) {
    changed.Record(key);
    SaveQuietly(key, std::move(value));
  }
  // Here the caller notes what depends on the record.
  void SaveQuietly(const RecordKey& key, RecordValue value) { dirty[key.text] = std::move(value); }
  void Erase(const RecordKey& key) {
    changed.Record(key);
    dirty[key.text] = std::nullopt;
  }
  // Makes the pool where it is not there yet, with epochs above all that its name may have had.
  Pool& PoolOf(const PoolId& id);
  void BeginAtFloor(Pool& pool) const;
  void SavePool(const PoolId& id, const Pool& pool);
  void SaveSync(const PoolId& id, const Pool& pool);

  // The version's name on engines of this kind. From then on what members report under it counts,
  // for deaths too.
  const EngineName& NameOf(const VersionInfo& version, fleet::EngineKind kind);
  // The same name, for queries: it counts for nothing. Until ForgetMade.
  const EngineName& NameIn(const VersionInfo& version, fleet::EngineKind kind) const;
  void ForgetMade();
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
