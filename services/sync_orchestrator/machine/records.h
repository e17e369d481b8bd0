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

// "meta"
struct MetaRecord {
  Term term;
  bool settled = false;  // false: begun over empty records, and members may yet remember decisions
                         // (FleetAdopted)
  auto operator<=>(const MetaRecord&) const = default;
};
// "member/<member>": the roster. Written again, conditional on the term, whenever a session begins.
struct MemberRecord {
  PoolName pool;
  JournalId journal;  // Desired documents are bound to it
  uint64_t attached_term = 0;
  bool excluded = false;  // by an operator
  std::string excluded_why;
  bool dead = false;  // by an operator; a new session brings it back as a newcomer
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
  std::vector<Activation>
      history;  // of the current lineage, oldest first; the last is what is committed
  std::vector<VersionKey>
      pending;  // waits for a sync: the newest, or with skip NEVER a few, oldest first
  std::vector<VersionKey> refused;  // the last few that a full queue turned away (SYNC_BACKLOG)
  std::optional<VersionKey> considered;   // the newest version ever queued or refused
  std::optional<VersionKey> override_to;  // an operator's; automatic syncs wait while it is set
  auto operator<=>(const PoolRecord&) const = default;
};
struct SyncMember {
  MemberId member;
  BootId boot;                 // frozen: another boot is the member's death
  std::string dropped;         // why it dropped out; empty while it takes part
  uint32_t deaths_before = 0;  // engine lives the version had ended here when the sync began
  auto operator<=>(const SyncMember&) const = default;
};
// "sync/<adapter>/<pool>": the running one. It ends with its decision.
struct SyncRecord {
  Epoch epoch;
  VersionInfo version;
  fleet::SyncMode mode = fleet::SyncMode::kRolling;
  bool overriding = false;  // started by an override: restarts the lineage
  std::vector<SyncMember> members;
  auto operator<=>(const SyncRecord&) const = default;
};
// "decision/<adapter>/<pool>": the last sync's end. Written by compare-and-set in the transaction
// that ends the sync.
struct DecisionRecord {
  Epoch epoch;
  VersionKey version;
  bool commit = false;
  std::string reason;  // ABORT: why
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
// "poison/<adapter>/<run>.<number>": engines that died of a version; two make it POISONED.
struct PoisonRecord {
  VersionKey version;
  std::map<MemberId, uint32_t> deaths;
  auto operator<=>(const PoisonRecord&) const = default;
};

using RecordValue = std::variant<MetaRecord, MemberRecord, PoolRecord, SyncRecord, DecisionRecord,
                                 LeaseRecord, PoisonRecord, RequestsRecord>;
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
