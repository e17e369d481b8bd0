// The orchestrator's durable state, as a map from key to record (docs/SEMANTICS.md §11). A driver
// writes the changes of a Ready in one transaction that is conditional on the meta record
// (Ready::fence): whoever lost the leadership writes nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/fleet/policy.h"

namespace lorry::sync {

// What the records are worth.
enum class Worth {
  kNew,      // begun over none: it is not known yet whether there were any
  kSettled,  // they hold all that was decided and promised
  kLost,     // somebody remembers later ones; an operator is asked (FleetAdopted)
};
// "meta"
struct MetaRecord {
  Term term;
  Worth worth = Worth::kNew;
  // Above every epoch of adapters that are gone, and whose records are: what is new begins with it,
  // as it may have the name of one of them.
  Epoch floor = {};
  auto operator<=>(const MetaRecord&) const = default;
};
// By what the store tells holder sets apart: the later one is the greater.
struct HoldsMark {
  uint64_t incarnation = 0;
  Revision revision;
  auto operator<=>(const HoldsMark&) const = default;
};
// "holds": how far holder sets of this incarnation have come. Written before a set is sent, so that
// records from before it are known by it.
struct HoldsRecord {
  Revision sent;
  Revision acked;  // the last that the store has said to have accepted
  auto operator<=>(const HoldsRecord&) const = default;
};
// "member/<member>": the roster. Written again, conditional on the term, whenever a session begins.
struct MemberRecord {
  PoolName pool;
  JournalId journal;  // Desired documents are bound to it
  uint64_t attached_term = 0;
  bool excluded = false;  // by an operator
  std::string excluded_why;
  bool dead = false;  // by an operator; a new session brings it back as a newcomer
  // The engine's last boot, and whether the member was READY in it and in the one before: an engine
  // that was counts among those of which `min_engines` asks a share, though it restarts just now.
  BootId boot = {};
  bool was_ready = false;
  bool was_ready_before = false;
  auto operator<=>(const MemberRecord&) const = default;
};
// What a version is known by, kept where the store's own answer may be away.
struct VersionInfo {
  VersionKey key;
  Digest digest;
  fleet::VersionTraits traits;
  auto operator<=>(const VersionInfo&) const = default;
};
struct Activation {
  Epoch epoch;
  VersionInfo version;
  auto operator<=>(const Activation&) const = default;
};
// "pool/<adapter>/<pool>"
struct PoolRecord {
  Epoch epoch;  // the highest given out, decided or not
  // Of the current lineage, oldest first; the last is what is committed.
  std::vector<Activation> history;
  // What waits for a sync: the newest version, or with skip NEVER a few, oldest first.
  std::vector<VersionKey> pending;
  std::vector<VersionKey> refused;  // the last few that a full queue turned away (SYNC_BACKLOG)
  std::optional<VersionKey> considered;   // the newest version ever queued or refused
  std::optional<VersionKey> override_to;  // an operator's; automatic syncs wait while it is set
  Epoch barrier = {};  // of the last COMMIT in mode BARRIER: nothing older is served any more
  Epoch began = {};  // MetaRecord::floor when this began: what doors have from before is another's
  auto operator<=>(const PoolRecord&) const = default;
};
// Why a member takes no further part in a sync.
enum class Drop {
  kNone,
  kNoSlot,
  kDead,
  kLost,
  kExcluded,
  kNotReady,
  kRestarted,  // its engine has another boot
  kMoved,      // to another pool
  kFailed,     // what others of its kind have loaded
  kBarred,     // a verdict on the version
  kUnfit,      // its engine cannot serve the version under the policy, which has changed
  kTooSlow,    // not LOADED by the stage deadline
  kLeft,       // the roster: it said goodbye, or was away for too long
};
std::string_view ToString(Drop drop);

struct SyncMember {
  MemberId member;
  BootId boot;  // frozen: another boot is the member's death
  Drop dropped = Drop::kNone;
  std::string words = {};  // for people: the member's own, with kFailed and kBarred
  auto operator<=>(const SyncMember&) const = default;
};
// "sync/<adapter>/<pool>": the running one. It ends with its decision.
struct SyncRecord {
  Epoch epoch;
  VersionInfo version;
  fleet::SyncMode mode = fleet::SyncMode::kRolling;
  bool overriding = false;          // started by an override: restarts the lineage
  std::vector<SyncMember> members;  // sorted
  // What a share of `min_engines` is a share of: the members that were READY, or were so in their
  // current or previous boot, when the sync began.
  uint32_t share_of = 0;
  // Where the pool took the version from; another source in the policy ends the sync.
  fleet::PoolSource source = {};
  const SyncMember* Find(const MemberId& member) const;  // null: it takes no part
  auto operator<=>(const SyncRecord&) const = default;
};
// Why a sync was aborted.
enum class Abort {
  kNone,
  kPolicyChanged,
  kOverridden,
  kRunFenced,
  kTooFewEngines,
  kStageDeadline,
  kUnreachable,      // BARRIER: a member's door could not be asked to hold until the stage deadline
  kHoldEnded,        // a door's own deadline ended its hold
  kBarrierDeadline,  // not every door held and locked in time
  // Verdicts leave too few engines for the version.
  kRefused,
  kPoisoned,
  kStalls,
};
std::string_view ToString(Abort why);

// "decision/<adapter>/<pool>": the last sync's end. Written by compare-and-set in the transaction
// that ends the sync.
struct DecisionRecord {
  Epoch epoch;
  VersionKey version;
  bool commit = false;
  Abort why = Abort::kNone;  // unless it is a COMMIT
  auto operator<=>(const DecisionRecord&) const = default;
};
// "requests/<adapter>/<pool>": what the last few overrides were answered, oldest first.
struct OverrideResult {
  std::string request_id;
  std::optional<VersionKey> version;
  Epoch epoch;
  auto operator<=>(const OverrideResult&) const = default;
};
struct RequestsRecord {
  std::vector<OverrideResult> overrides;
  auto operator<=>(const RequestsRecord&) const = default;
};
// "lease/<adapter>/<pool>/<run>.<number>/<holder>": one promise; asked again it is renewed.
struct LeaseRecord {
  VersionInfo version;
  PoolName pool;
  std::string holder;
  int64_t ttl_ms = 0;
  auto operator<=>(const LeaseRecord&) const = default;
};
// Engines that meet the same fate with a version, as text to compare: verdicts.h.
using EngineGroup = StringId<struct EngineGroupTag>;

enum class Verdict {
  kOpen,      // nothing is known yet, or not enough
  kProven,    // an engine loaded it and answered a token
  kRefused,   // engines say that they do not take it
  kPoisoned,  // engines died while they loaded or probed it
  kStalls,    // engines hang when they load or probe it
};
std::string_view ToString(Verdict verdict);

struct GroupVerdict {
  Verdict verdict = Verdict::kOpen;
  std::string words = {};  // an engine's own, of a refusal
  struct Tries {
    BootId boot;  // of the last; empty in a record of before it was kept
    uint32_t tries = 0;
    auto operator<=>(const Tries&) const = default;
  };
  // What it is made of. Engines that died or hung of it or refused it, by member and how often. One
  // that hung and then died in the same try is among the dead alone.
  std::map<MemberId, uint32_t> deaths = {};
  std::map<MemberId, Tries> hung = {};
  std::map<MemberId, Tries> refusals = {};
  // Who was given leave to try it, written down before it may, until it is known what came of that.
  struct Leave {
    BootId boot;        // that it holds for
    JournalId journal;  // that tells what its engine died of
    bool lost = false;  // the member was LOST or declared DEAD since; until it is back
    // It said goodbye as it loaded it; until it is back, or no load lasts longer.
    bool left = false;
    auto operator<=>(const Leave&) const = default;
  };
  std::map<MemberId, Leave> leave = {};
  auto operator<=>(const GroupVerdict&) const = default;
};
// "verdict/<adapter>/<run>.<number>"
struct VerdictRecord {
  VersionKey version;
  std::map<EngineGroup, GroupVerdict> groups;
  // Deaths that each member's journal counts; another journal of the member counts from the
  // beginning. Some are in no group: an operator had excluded the member, or has lifted the
  // verdict.
  struct Reported {
    JournalId journal;  // empty in a record of before it was kept
    uint32_t deaths = 0;
    auto operator<=>(const Reported&) const = default;
  };
  std::map<MemberId, Reported> reported;
  auto operator<=>(const VerdictRecord&) const = default;
};

using RecordValue = std::variant<MetaRecord, MemberRecord, PoolRecord, SyncRecord, DecisionRecord,
                                 LeaseRecord, VerdictRecord, RequestsRecord, HoldsRecord>;
struct Record {
  std::string key;
  std::optional<RecordValue> value;  // none: delete
  auto operator<=>(const Record&) const = default;
};
using Records = std::map<std::string, RecordValue>;

// Canonical JSON, with the record's kind in it; records_json.cc.
std::string Encode(const RecordValue& value);
absl::StatusOr<RecordValue> Decode(std::string_view text);

}  // namespace lorry::sync
