// The proxy's journal: what it promised, as a map from key to record (docs/SEMANTICS.md §11). A
// driver persists the changes of a Ready in one synced transaction: a record without a value is
// deleted. Everything not here is reported again. How versions of the program read each other's records:
// lib/fleet/json.h.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "lib/base/clock.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/record.h"

namespace lorry::proxy {

// "journal": written once. A journal that is lost begins another, and Desired documents bound to
// the old one are refused.
struct JournalRecord {
  MemberId member;
  JournalId journal;
  auto operator<=>(const JournalRecord&) const = default;
};
// "term": the highest ever accepted; a lower one changes nothing.
struct TermRecord {
  Term term;
  auto operator<=>(const TermRecord&) const = default;
};
// "row/<adapter>": the decision this row stands on, and the lock if one was acknowledged.
struct RowRecord {
  uint64_t incarnation = 0;  // whose epochs these are
  bool open = false;         // false: CLOSED, until `target` of a decision is LOADED
  Epoch epoch;               // of the last decision this row stood on
  EngineName target;
  Epoch locked;   // LOCKED(locked) when not 0
  PoolName pool;  // whose decisions these are; empty in a record of before it was kept
  // A process that begins opens it only once it was told to: its pool has barriers, or the one
  // before it said goodbye. What was decided since was decided without this door.
  bool waits = false;
  auto operator<=>(const RowRecord&) const = default;
};
// "boot": the engine life last seen.
struct BootRecord {
  BootId boot;
  auto operator<=>(const BootRecord&) const = default;
};
// "name/<engine name>": a directory that exists, and the boot that was last asked to load it.
struct NameRecord {
  VersionKey key;
  Digest digest;
  fleet::Render render = fleet::Render::kPlain;
  std::string path;
  BootId loaded_on;    // empty: no boot was asked since it was last asked to unload it
  BootId tried_on;     // the boot that it is on trial on; empty: on none
  uint64_t trial = 0;  // which one, counted over this journal
  // Some engine was asked to load it from there; not said in a record of before it was kept.
  bool asked = true;
  bool leased = false;  // to clients that call the engine directly, and may still be used by them
  // How it is fetched and probed before anybody has said what is desired: as it was last.
  fleet::VersionTraits traits = {};
  fleet::ProbeMode probe = fleet::ProbeMode::kAuto;
  uint32_t probe_gap_ppm = fleet::kProbeGapPpmDefault;
  uint32_t apart_ppm = 0;  // how far it was seen to be from the base model; 0: not yet
  BootId slept_on;         // the boot that slept, or got other weights, since it loaded this
  auto operator<=>(const NameRecord&) const = default;
};
// "paused": written before the pause is sent, deleted after the engine was seen to go on.
struct PausedRecord {
  BootId boot;
  fleet::PauseKind kind = fleet::PauseKind::kNone;
  // Of a framework's pause, which a later process keeps until then; 0: it is Lorry's own, and ends
  // with its process. A tick as of UnloadingRecord.
  Tick framework_until = 0;
  auto operator<=>(const PausedRecord&) const = default;
};
// "asleep": what frameworks have the engine release of its memory; written before the engine hears of
// it, deleted once the last of it is back. It has no deadline: who released it has the memory in use.
struct AsleepRecord {
  BootId boot;
  std::set<std::string> tags;
  // Of these, what a call is for that has no answer yet: if none comes, or this process hears it no
  // more, nobody knows whether the engine has released them.
  std::set<std::string> doubted;
  auto operator<=>(const AsleepRecord&) const = default;
};
// "unloading": an unload that was sent and not answered yet. Ticks go on over a restart of the
// process, not over one of the machine; until_tick is never taken for later than a whole deadline.
struct UnloadingRecord {
  BootId boot;
  EngineName name;
  Tick until_tick = 0;
  auto operator<=>(const UnloadingRecord&) const = default;
};
// "wedged": an unload passed its deadline on this boot; loads would hang behind it.
struct WedgedRecord {
  BootId boot;
  EngineName name;
  auto operator<=>(const WedgedRecord&) const = default;
};
// "killer/<engine name>": boots that ended while it was on trial there.
struct KillerRecord {
  uint32_t deaths = 0;
  auto operator<=>(const KillerRecord&) const = default;
};

// "binding/<client's name>": what a framework's name at this door stands for. Its files are those of
// "name/<engine name>", and are read again from `path` where they are lost.
struct BindingRecord {
  EngineName name;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
  std::string path;
  uint64_t order = 0;  // counts bindings of this journal
  auto operator<=>(const BindingRecord&) const = default;
};

using RecordValue =
    std::variant<JournalRecord, TermRecord, RowRecord, BootRecord, NameRecord, PausedRecord,
                 WedgedRecord, KillerRecord, UnloadingRecord, BindingRecord, AsleepRecord>;
using Record = fleet::RecordOf<RecordValue>;
using Records = std::map<std::string, RecordValue>;

// Canonical JSON, with the record's kind in it; records_json.cc.
std::string Encode(const RecordValue& value);
absl::StatusOr<RecordValue> Decode(std::string_view text);

}  // namespace lorry::proxy
