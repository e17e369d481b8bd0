// The inside of the proxy's machine: its state as plain members, shared by the files of this
// folder. Private to the folder; one thread.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "services/engine_proxy/machine/machine.h"

namespace lorry::proxy {

// Names remembered as killers; more than a fleet of bad versions an operator would let pass.
inline constexpr size_t kKillersLimit = 64;

// What is under way for a name; at most one thing.
enum class Doing {
  kNothing,
  kFetching,
  kCancelling,
  kHashing,
  kChecking,  // does it fit the base model?
  kLoading,
  kVerifying,  // loaded or not? the next listing tells
  kProbing,
  kUnloading,
  kDeleting,
};

// Why a FETCHED version that MUST be loaded is not.
inline constexpr std::string_view kNoSlot = "NO_SLOT";

struct Residency {
  EngineName name;
  const fleet::WantedVersion* wanted = nullptr;  // in `desired`, as of the last MeetDesired
  VersionKey key;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
  fleet::ResidencyState state = fleet::ResidencyState::kAbsent;
  Doing doing = Doing::kNothing;
  OpId op = 0;
  std::string path;      // of its directory; empty while there is none
  bool trusted = false;  // this process saw the directory's digest
  // The base model that its shapes were compared with, as Core::base_count; 0: none yet.
  uint64_t compared_with = 0;
  bool fits = false;  // what came of it
  // Its directory has other bytes than it should: to be removed and fetched again.
  bool broken = false;
  BootId loaded_on;      // the boot last asked to load it
  BootId uncertain_on;   // a load there got no answer, and may happen yet
  uint64_t changed = 0;  // the registry's count when it was last loaded or unloaded
  fleet::Failure failure = fleet::Failure::kNone;  // FAILED, or a load that is to be judged
  std::string reason, detail;
  uint32_t tries = 0;  // failures in a row
  uint32_t waits = 0;  // fetches in a row that found nobody
  Tick retry_at = 0;
  Tick unload_after = 0;  // an engine may refuse, or answer and not do it
  bool blocked = false;   // engines died of it: not tried again until it leaves Desired
  bool evicting = false;  // MAY that makes room
  uint64_t bytes_done = 0, bytes_total = 0;
  Revision closed_at;  // the first door table that does not route it; 0 while one does
};

struct Row {
  RowRecord record;
  Epoch held;  // HELD(held) when not 0
  Tick held_until = 0;
  Epoch revoked;          // the last hold that ended by its own deadline
  bool was_open = false;  // some table of this process had it open
  Revision shut_at;       // the first table since whose row admits nothing; 0 while it is open
};

struct Pause {
  std::optional<PausedRecord> record;
  fleet::DesiredPause wanted;
  bool confirmed = false;  // the engine said so
  bool spent = false;      // its deadline passed; not begun again until Desired drops it
  Tick until = 0;
  OpId op = 0;
  Tick retry_at = 0;
  bool ending = false;
};

struct Core {
  Config config;
  Tick now = 0;
  JournalRecord journal;
  Term term;
  bool session = false;
  std::optional<fleet::Desired> desired;  // accepted in this process
  bool met = false;                       // every wanted version has a residency, which knows it

  // the engine
  BootId boot;          // empty while its process is gone or was not seen yet
  BootId journal_boot;  // as recorded
  bool answers = false;
  bool asleep = false;
  fleet::EngineLimits limits;
  std::string engine_version, problem, warning;
  std::string lost_why;                       // while no engine answers
  std::optional<peft::BaseModel> base_model;  // that the engine serves
  bool base_unchecked = false;                // the operator vouches for every adapter
  uint64_t base_count = 0;                    // how many base models were seen so far
  std::optional<WedgedRecord> wedged;
  uint32_t hung_loads = 0;  // loads in a row that got no answer
  std::map<EngineName, std::string> listing;
  // The registry's count when the listing was asked for; 0: none on this boot.
  uint64_t listing_at = 0;
  uint64_t registry = 0;       // counts changes of the engine's registry, and listings asked for
  uint64_t call_ended_at = 0;  // the registry's count when a load or unload last ended
  OpId list_op = 0;
  uint64_t list_asked_at = 0;
  Tick list_due = 0;    // the next, though nothing waits for it
  Tick list_after = 0;  // not before: the last one failed
  bool counts_known = false;
  uint32_t quiet_streak = 0;
  std::optional<uint64_t> load_seen;  // judged at judge_at, while counts are not known
  Tick judge_at = 0;
  uint64_t live_low = 0;  // the fewest live requests since that load was asked for
  OpId load_op = 0;       // AskEngineLoad
  Tick load_due = 0;
  bool quiet = false;  // during one step: the engine's own load has just not contradicted

  std::map<EngineName, Residency> residencies;
  std::map<AdapterName, Row> rows;
  std::map<EngineName, KillerRecord> killers;
  Pause pause;

  // the door
  DoorTable table;
  bool table_stale = true;  // Desired may have changed what the table says
  Revision reported;        // every io_context resolves by this table or a later one
  std::map<EngineName, uint32_t> in_flight;

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

  // Wanted by Desired, or before the first one, by a row of the journal.
  bool IsWanted(const Residency& residency) const;
  bool IsWantedLoaded(const Residency& residency) const;
  // A row stands on it, whatever the row's mode is now.
  bool IsRowTarget(const EngineName& name) const;
  const fleet::DesiredRow* WantedRow(const AdapterName& adapter) const;
  Residency* FindByOp(OpId op, Doing doing);
  const Residency* Find(const EngineName& name) const;
  bool IsLoaded(const EngineName& name) const;
  // Whether its shapes are known to be, or known not to be, those of the base model that the engine
  // serves now.
  bool Fits(const Residency& residency) const {
    return base_unchecked || (IsCompared(residency) && residency.fits);
  }
  bool IsMisfit(const Residency& residency) const {
    return !base_unchecked && IsCompared(residency) && !residency.fits;
  }
  bool IsCompared(const Residency& residency) const {
    return base_model.has_value() && residency.compared_with == base_count;
  }
  bool IsWedged() const { return wedged.has_value() && wedged->boot == boot && !boot.empty(); }
  uint32_t InFlight(const EngineName& name) const;
  uint64_t LiveRequests() const;
  // Whether the newest listing is younger than what happened to the name, and names it.
  bool FreshlyListed(const Residency& residency) const { return listing_at > residency.changed; }
  // Whether the listing shows what the last load or unload left behind. Slots are counted by no
  // other: such an end also settles what was uncertain until then, one way or the other.
  bool SlotsListed() const { return listing_at > call_ended_at; }
  bool IsListed(const Residency& residency) const;
  bool IsListedAsOurs(const Residency& residency) const;
  int64_t Backoff(uint32_t tries) const;
  int64_t AwayBackoff(uint32_t waits) const;
};

std::string NameKey(const EngineName& name);
std::string RowKey(const AdapterName& adapter);
std::string KillerKey(const EngineName& name);

}  // namespace lorry::proxy
