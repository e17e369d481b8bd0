// The inside of the proxy's machine: its state as plain members, shared by the files of this
// folder. Private to the folder; one thread.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "services/engine_proxy/machine/machine.h"
#include "services/engine_proxy/machine/probe.h"

namespace lorry::proxy {

// Names remembered as killers; more than a fleet of bad versions an operator would let pass.
inline constexpr size_t kKillersLimit = 64;

// The states of a residency (docs/machines.md), each with what only it has.
namespace at {
// How a fetch, a load or a probe ended that did not succeed.
struct Mishap {
  fleet::Failure failure = fleet::Failure::kNone;
  std::string reason, detail;
};
struct Absent {
  // Why its last fetch ended; it is tried again, and nobody is to blame yet.
  std::optional<Mishap> put_off;
};
struct Fetching {
  OpId op = 0;
  uint64_t bytes_done = 0, bytes_total = 0;
  std::string waits_for;  // another node that does not have it yet
};
struct Cancelling {
  OpId op = 0;
};
struct Fetched {
  // Why its last load never reached the engine; it is tried again, and nobody is to blame.
  std::optional<Mishap> put_off;
  // While no version would make room for it; for people.
  std::optional<std::string> no_slot;
  std::optional<Tick> needs_slot_since;  // while it would be loaded now, but for a slot
};
struct Hashing {
  OpId op = 0;
};
struct Checking {
  OpId op = 0;
};
struct Deleting {
  OpId op = 0;
};
struct Loading {
  OpId op = 0;
  bool is_outdated = false;  // the engine slept meanwhile, or got other weights
};
struct Verifying {               // the load ended, and the next listing tells what came of it
  std::optional<Mishap> mishap;  // none: the engine said that it is done
};
struct Probing {
  OpId op = 0;
  bool was_found = false;  // on the engine, and not loaded just now
};
struct Doubted {  // its call broke off: the engine is looked at until it is known to live, or not
  Mishap mishap;
  bool was_probe = false;
  Tick since = 0;
  uint32_t looks = 0;  // good ones since then
};
struct Loaded {
  std::string reason, detail;  // UNPROVEN, BASE_MODEL_DIFFERS, or empty
  std::optional<fleet::ObservedGap> gap;
};
struct Unloading {
  OpId op = 0;  // 0: nothing answers any more, the engine is WEDGED
};
struct Failed {
  Mishap mishap;
};
}  // namespace at
using Phase = std::variant<at::Absent, at::Fetching, at::Cancelling, at::Fetched, at::Hashing,
                           at::Checking, at::Deleting, at::Loading, at::Verifying, at::Probing,
                           at::Doubted, at::Loaded, at::Unloading, at::Failed>;

// The files of a version as this process knows them.
struct Directory {
  std::string path;
  bool proven = false;  // this process saw that its digest is the wanted one
  bool asked = false;   // some engine was asked to load it from there
  bool broken = false;  // it has other bytes than it should: to be removed and fetched again
  // The base model that its shapes were compared with, as Core::base_count; 0: none yet.
  uint64_t compared_with = 0;
  bool fits = false;  // what came of it
  peft::Reference reference;
  std::string differences;  // for people: of its base model and the engine's
};

// Requests may be on a name that this door does not count (uncounted.h).
struct Uncounted {
  bool leased = false;        // of clients that call the engine directly
  std::optional<Tick> until;  // then they are given up on; none while the lease lasts
  uint32_t shows_none = 0;    // answers of the engine in a row
};

struct Residency {
  EngineName name;
  // In `desired` or among what bindings want, as of the last MeetDesired.
  const fleet::WantedVersion* wanted = nullptr;
  VersionKey key;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
  ProbeRules rules;
  uint32_t apart_ppm = 0;  // how far it was seen to be from the base model (probe.h)
  Phase phase;
  std::optional<Directory> directory;
  // The boot that was last asked to load it, until it is asked to unload it.
  BootId loaded_on;
  // The boot that it is on trial on (verdicts.h), and the number of its last trial in this journal.
  BootId tried_on;
  uint64_t trial = 0;
  BootId slept_on;      // the boot that slept, or got other weights, since it loaded this
  BootId uncertain_on;  // a load there got no answer, and may happen yet
  // The same, until a later call is answered: of loads that were repeated one may have happened, so
  // that the name is listed, while the others are yet to read the directory.
  BootId may_be_read_on;
  uint64_t changed_as_of = 0;  // the registry's count when it was last loaded or unloaded
  uint32_t tries = 0;          // failures in a row
  uint32_t waits = 0;          // fetches or loads in a row that found nobody
  Tick retry_at = 0;
  Tick unload_after = 0;  // an engine may refuse, or answer and not do it
  bool evicting = false;  // MAY that makes room
  Revision closed_at;     // the first door table that does not route it; 0 while one does
  std::optional<Uncounted> uncounted;
  BootId known_on;           // the boot on which this process loaded it, or found it
  bool must_reload = false;  // what the engine has of it from before is not what it was loaded as

  void LeaveUncertain(const BootId& boot) { uncertain_on = may_be_read_on = boot; }
  template <typename State>
  bool Is() const {
    return std::holds_alternative<State>(phase);
  }
  // In one of them.
  template <typename... States>
  bool IsAny() const {
    return (Is<States>() || ...);
  }
};

// What the engine's registry of adapters was seen to hold. Lists count only where they were asked
// for after what they are to show.
struct Registry {
  std::map<EngineName, std::string> listing;
  uint64_t changes = 0;           // loads and unloads that began or ended, and listings asked for
  uint64_t listed_as_of = 0;      // `changes` when the listing was asked for; 0: none on this boot
  uint64_t call_ended_as_of = 0;  // `changes` when a load or unload last ended
  OpId op = 0;                    // List
  uint64_t asked_as_of = 0;       // `changes` when `op` was asked for
  Tick due = 0;    // the next listing is asked for then at the latest, though nothing waits for it
  Tick after = 0;  // and not before this, where the last one failed

  bool IsListed() const { return listed_as_of != 0; }
  bool SettledSince(uint64_t change) const { return listed_as_of > change; }
  // Whether the listing was asked for after the last load or unload had ended. Slots are counted
  // only then: before that, a load without an answer may or may not have happened.
  bool SlotsSettled() const { return SettledSince(call_ended_as_of); }
};

// The states of a row (docs/machines.md).
namespace row_at {
struct Closed {};
struct Open {};
struct Held {
  Epoch epoch;
  Tick until = 0;
};
struct Locked {};  // the record has the epoch
}  // namespace row_at
using RowPhase = std::variant<row_at::Closed, row_at::Open, row_at::Held, row_at::Locked>;

struct Row {
  RowRecord record;
  RowPhase phase;
  Epoch revoked;  // the last hold that ended by its own deadline
  // The pause for that epoch failed, and why, or it has ended by its own deadline: the row waits
  // for requests to end instead.
  struct PauseGivenUp {
    Epoch epoch;
    std::string why;
  };
  PauseGivenUp pause_given_up;
  bool was_open = false;  // some table of this process had it open
  Revision shut_at;       // the first table since whose row admits nothing; 0 while it is open
};

// The states of the pause (docs/machines.md). What is paused is in the record.
namespace pause_at {
struct None {};
struct Pausing {
  OpId op = 0;
  bool is_again = false;  // a framework's pause holds already
};
struct Paused {};
struct Resuming {
  OpId op = 0;
  Tick retry_at = 0;
  uint32_t needed = 1;  // answers of the engine that it goes on, one after the other
};
}  // namespace pause_at
using PausePhase =
    std::variant<pause_at::None, pause_at::Pausing, pause_at::Paused, pause_at::Resuming>;

struct Pause {
  PausePhase phase;
  std::optional<PausedRecord> record;  // in every state but NONE
  fleet::DesiredPause wanted;          // as it was when the pause began
  std::map<AdapterName, Epoch> rows;   // that it was begun for, and that need it still
  Tick until = 0;
  // It is held by whoever called at the door, and for no row (framework_calls.h).
  bool by_framework = false;
  bool is_doubtful = false;  // a framework's PAUSED has no answer of the engine's yet
  // As the engine says, a framework's pause that this process began has ended what it had.
  bool has_ended_all = false;
  uint64_t overdue = 0;      // of frameworks, that ended because their time was over
  bool was_overdue = false;  // the last of them did
};

// What frameworks have asked for and have no answer to.
struct FrameworkCalls {
  std::deque<CallMade> waiting;     // for their turn, in order
  uint64_t serving = 0;             // the ticket of the one that the engine is asked for; 0: none
  std::vector<AnswerCall> answers;  // of this step
};

// Whose load had no answer when the engine ended (verdicts.h).
struct Accused {
  OpId load = 0;
  EngineName name;
};

// What frameworks have released of the engine's memory, and the call that it is asked for as it
// came (memory.h).
struct Memory {
  std::optional<bool> seen_asleep;  // as the engine says of itself
  // The last PassCall with an answer: what a look at the boot that it went to says is old where it
  // began before that, also if the engine was lost from sight meanwhile.
  OpId heard_since = 0;
  BootId passed_to;
  std::optional<AsleepRecord> record;  // while some of it is released, as far as is known here
  OpId op = 0;                         // PassCall
  std::variant<ReleaseCall, WakeCall, WeightsCall> passing;
  std::optional<AsleepRecord> before;  // `record` as it was before that
  Revision shut_at;  // the first table that admits nothing for a call's sake; 0 while one does
  uint32_t looks_awake = 0;  // answers of the engine in a row, against the record
  // Whether an earlier process has requests on the engine that the door does not count: it has none
  // on a boot that was seen at rest.
  BootId idle_on;
  uint32_t looks_idle = 0;      // answers of the engine in a row
  std::optional<Tick> idle_by;  // while a call waits for that
};

// What a binding, or a call that makes one, wants of the engine.
struct Bound {
  fleet::WantedVersion wanted;
  std::string path;  // a framework's directory with these bytes
};

// A framework's call to bind a name that has no answer yet (bindings.h).
struct PendingBind {
  BindAsked asked;
  OpId op = 0;                        // of ReadBinding, while its directory is read
  std::optional<BindingRecord> made;  // once it was
  Tick until = 0;
};

struct Bindings {
  std::map<std::string, BindingRecord> by_name;  // the client's
  std::map<EngineName, Bound> wanted;            // by these and by calls
  std::deque<PendingBind> calls;                 // in their order
  OpId reading = 0;                              // ReadBinding
  uint64_t last_order = 0;
  // Whoever was told that a name is bound has until then to send its first request: the target
  // makes no room before.
  std::map<EngineName, Tick> kept_until;
  // Engines here that ended of it, as its last caller knew or could have.
  std::map<EngineName, uint32_t> deaths_allowed;
  std::vector<AnswerBinding> answers;  // of this step
};

// What the door does with whoever comes; it never goes back.
enum class DoorState : uint8_t { kOpen, kDrains, kClosed };

struct Core {
  Config config;
  Tick now = 0;
  JournalRecord journal;
  Term term;
  bool session = false;
  DoorState door = DoorState::kOpen;
  bool leaves = false;  // the orchestrator is told that the proxy leaves: no row moves any more
  std::optional<fleet::Desired> desired;  // accepted in this process
  bool met = false;  // every wanted version has a residency, whose `wanted` points to it
  std::map<AdapterName, const fleet::DesiredRow*> wanted_rows;  // in `desired`

  // the engine
  BootId boot;          // empty while its process is gone or was not seen yet
  BootId journal_boot;  // as recorded
  bool answers = false;
  bool asleep = false;  // it says so, or a framework released its memory (memory.h)
  fleet::EngineLimits limits;
  std::string engine_version, warning;
  std::optional<std::string> problem;         // EngineSeen's
  std::string lost_why;                       // while no engine answers
  std::optional<peft::BaseModel> base_model;  // that the engine serves
  bool base_unchecked = false;                // the operator vouches for every adapter
  uint64_t base_count = 0;                    // how many base models were seen so far
  std::optional<WedgedRecord> wedged;
  // The unload that was sent and not answered yet; by an earlier process, or before a connection
  // broke, where no residency is UNLOADING: it is asked for again.
  std::optional<UnloadingRecord> unloading;
  uint32_t hung_loads = 0;  // loads in a row that got no answer
  Registry registry;
  OpId occupancy_op = 0;  // AskOccupancy
  Tick occupancy_due = 0;
  std::optional<OccupancySeen> occupancy_seen;  // judged at judge_at
  Tick judge_at = 0;
  // The fewest requests that the door counted since the engine was asked for its occupancy.
  uint64_t live_low = 0;

  std::map<EngineName, Residency> residencies;
  std::map<AdapterName, Row> rows;
  std::set<EngineName> row_targets;  // of the rows' records that are open
  std::map<EngineName, KillerRecord> killers;
  std::optional<Accused> accused;
  uint64_t last_trial = 0;
  Pause pause;
  FrameworkCalls calls;
  Memory memory;
  Bindings bindings;

  // the door
  DoorTable table;
  bool table_stale = true;  // Desired may have changed what the table says
  Revision reported;        // every io_context resolves by this table or a later one
  std::map<EngineName, uint32_t> in_flight;
  std::map<EngineName, uint32_t> by_name;        // of these, as in DoorReport
  std::vector<AdapterName> waiting;              // as in DoorReport
  std::map<EngineName, uint64_t> last_admitted;  // likewise
  uint64_t report_sequence = 0;                  // of the last one
  bool must_went_first = false;  // by the last load, while requests waited for another version

  // what came of the last steps
  OpId last_op = 0;
  uint64_t sequence = 0;
  fleet::Observed sent;
  Tick sent_at = 0;
  std::map<std::string, std::optional<RecordValue>> dirty;
  std::vector<Effect> effects;

  OpId NewOp() { return ++last_op; }
  void Save(std::string key, RecordValue value) { dirty[std::move(key)] = std::move(value); }
  void Erase(std::string key) { dirty[std::move(key)] = std::nullopt; }
  void SaveName(const Residency& residency);

  RowsTaken taken;
  DemandTally demand_tally;

  // Wanted by Desired, or before the first one, by a row of the journal.
  bool IsWanted(const Residency& residency) const;
  bool IsWantedLoaded(const Residency& residency) const;
  // Nobody wants it, and who would want it has been heard.
  bool IsUnwanted(const Residency& residency) const;
  // A binding, or a call that makes one, stands on it.
  bool IsBound(const EngineName& name) const { return bindings.wanted.contains(name); }
  // A row stands on it, whatever the row's mode is now.
  bool IsRowTarget(const EngineName& name) const;
  // New requests of some name come to it.
  bool IsServed(const EngineName& name) const { return IsRowTarget(name) || IsBound(name); }
  const fleet::DesiredRow* WantedRow(const AdapterName& adapter) const;
  const Residency* Find(const EngineName& name) const;
  bool IsLoaded(const EngineName& name) const;
  // In that state with that operation under way.
  template <typename State>
  Residency* FindAt(OpId op) {
    for (auto& [name, residency] : residencies) {
      const State* state = std::get_if<State>(&residency.phase);
      if (state != nullptr && op != 0 && state->op == op) return &residency;
    }
    return nullptr;
  }
  bool IsWedged() const { return wedged.has_value() && wedged->boot == boot && !boot.empty(); }
  uint32_t InFlight(const EngineName& name) const;
  uint32_t LatestInFlight(const EngineName& name) const;  // of these, what asked for `latest`
  uint64_t LiveRequests() const;
  // Whether the newest listing was asked for after the name was last loaded or unloaded.
  bool FreshlyListed(const Residency& residency) const {
    return registry.SettledSince(residency.changed_as_of);
  }
  bool IsListed(const Residency& residency) const;
  bool IsListedAsOurs(const Residency& residency) const;
  int64_t Backoff(uint32_t tries) const;
  int64_t AwayBackoff(uint32_t waits) const;
};

// The engine's name is a binding's, whoever has bound it.
bool IsBinding(const Residency& residency);

std::string NameKey(const EngineName& name);
std::string RowKey(const AdapterName& adapter);
std::string KillerKey(const EngineName& name);

}  // namespace lorry::proxy
