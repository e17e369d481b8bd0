// Observed: the whole document with which a member answers. The latest one counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/fleet/desired.h"
#include "lib/fleet/probe.h"
#include "lib/peft/base_model.h"

namespace lorry::fleet {

enum class ResidencyState { kAbsent, kFetching, kFetched, kLoading, kLoaded, kUnloading, kFailed };
std::string_view ToString(ResidencyState state);
std::string_view ToString(RowMode mode);

// Whose failure it is that a residency is FAILED. The orchestrator's verdicts on a version are made
// of this; the `reason` and `detail` beside it are words for people and steer nothing.
enum class Failure {
  kNone,     // it is not FAILED
  kMember,   // this member's own: of the fetch, the disk, the connection, and all not named below
  kRefused,  // the engine answered, with a free slot and a file that it can read, that it does
             // not take this adapter; `detail` has its words
  kEngineHung,  // the engine lives, and did not answer its load or probe in time
  kMisfit,      // its shapes are not those of the engine's base model
};

struct ObservedResidency {
  EngineName name;
  VersionKey key;
  ResidencyState state = ResidencyState::kAbsent;
  // A word of docs/ERRORS.md: why it FAILED, why it is FETCHED and not loaded (NO_SLOT), FETCHING
  // and not fetched (FETCH_UNANSWERED), what is amiss with it though it is LOADED (UNPROVEN,
  // BASE_MODEL_DIFFERS). Otherwise empty.
  std::string reason;
  std::string detail;  // for people
  Failure failure = Failure::kNone;
  bool no_slot = false;  // it is FETCHED and not loaded, as what must stay fills the engine
  std::optional<ObservedGap> gap;  // LOADED, and its trainer gave a reference
  uint64_t bytes_done = 0;         // FETCHING
  uint64_t bytes_total = 0;
  uint32_t in_flight = 0;  // requests at the engine that the door counts on it
  // False while there may be others on it: those of an earlier process or of a lease's holder.
  bool count_known = true;
  auto operator<=>(const ObservedResidency&) const = default;
};

struct ObservedRow {
  AdapterName adapter;
  RowMode mode = RowMode::kClosed;
  // What it stands on, whatever its mode: the last decision that it followed. Epochs count within
  // an incarnation; 0 stands for a decision of an earlier one.
  uint64_t incarnation = 0;
  Epoch epoch;
  EngineName target;  // empty: nothing
  // Of the sync for which it is HELD or LOCKED, or CLOSED while asked to be either; 0: none.
  Epoch barrier;
  // Of the last sync whose hold ended here by its own deadline; 0: none.
  Epoch revoked;
  // For people, while the row waits for its engine to come to rest: what it waits for. Where the
  // engine could not be paused this begins with the word of docs/ERRORS.md for that. Otherwise
  // empty.
  std::string waits_for;
  auto operator<=>(const ObservedRow&) const = default;
};

// What the proxy itself can say of its engine; EXCLUDED, LOST and DEAD are the orchestrator's
// words.
enum class MemberHealth { kJoining, kReady, kAsleep, kWedged };
std::string_view ToString(MemberHealth health);

// A name whose load or probe an engine did not survive, and how often, over all boots of this
// journal.
struct Killer {
  EngineName name;
  uint32_t deaths = 0;
  auto operator<=>(const Killer&) const = default;
};

struct Observed {
  JournalId journal;
  // Counts the documents of one proxy process: one with a lower number is older, and was overtaken.
  uint64_t sequence = 0;
  BootId boot;        // empty while no engine answers
  Term term;          // the highest this proxy has accepted
  Revision revision;  // of the Desired document that this one answers
  MemberHealth health = MemberHealth::kJoining;
  std::string health_detail;  // for people: the missing flag, what it waits for
  EngineLimits limits;
  std::string engine_version;
  std::optional<peft::BaseModel> base_model;   // that the engine serves; none: not known
  std::vector<ObservedRow> rows;               // sorted by adapter
  std::vector<ObservedResidency> residencies;  // sorted by name; ABSENT ones are left out
  std::optional<DesiredPause> paused;          // a pause that Lorry began and that holds
  std::vector<Killer> killers;                 // sorted by name
  // A goodbye: the door of this process is closed for good, and the next one opens no row before it
  // has attached and was told to. The member asks to be taken off the roster.
  bool leaves = false;
  auto operator<=>(const Observed&) const = default;
};

}  // namespace lorry::fleet
