// What the orchestrator's machine asks its driver to do, once the records of the same Ready are
// durable. Effects return nothing. Of SetDesired (per member) and of SetHolds only the latest
// counts, and the machine sends again whatever was lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "lib/fleet/desired.h"
#include "lib/fleet/observed.h"
#include "services/sync_orchestrator/machine/events.h"

namespace lorry::sync {

// What a member should have and route of one adapter.
struct DesiredPart {
  fleet::DesiredRow row;
  fleet::DoorRules rules;
  std::vector<fleet::WantedVersion> wanted;  // sorted by name
  std::vector<fleet::AliasRoute> aliases;    // sorted by alias
  auto operator<=>(const DesiredPart&) const = default;
};

// The document of one member in parts, sorted by adapter: members that want the same share them, so
// that adapters of which nothing is new cost nothing here.
struct SetDesired {
  SessionId session = 0;
  MemberId member;
  Term term;
  JournalId journal;
  BootId boot;
  Revision revision;
  std::vector<std::shared_ptr<const DesiredPart>> parts;

  fleet::Desired Whole() const;
};

// Ends an Attach stream with FAILED_PRECONDITION and this reason: TERM_FENCED, ENGINE_CLAIMED,
// SESSION_REPLACED. With OK it answers a goodbye.
struct EndSession {
  SessionId session = 0;
  absl::Status status;
};

// The whole holder set of the orchestrator at the store; answered by HoldsAcked.
struct SetHolds {
  HoldsMark mark;
  std::vector<VersionKey> versions;
};

// How far one member of a pool is with one version.
struct MemberProgress {
  MemberId member;
  fleet::ResidencyState state = fleet::ResidencyState::kAbsent;
  uint64_t bytes_done = 0;  // kFetching
  uint64_t bytes_total = 0;
  bool active = false;  // its door serves the version as `latest`
  // Why it takes no part: for what it dropped out of the sync, or its standing where that is not
  // READY.
  std::string dropped;
  auto operator<=>(const MemberProgress&) const = default;
};

// One state of WatchSync. The last one is final; the machine forgets the watch after it. It is sent
// at once when the state, its reason, epoch or successor changed; where only members got further
// (done, members, detail, progress), ten times a second at most.
struct WatchEvent {
  enum class State {
    kWaiting,
    kStaging,
    kHolding,
    kLocking,
    kCommitted,
    kActive,
    kSuperseded,
    kFailed,
    kStored
  };
  State state = State::kWaiting;
  bool final = false;
  bool is_unknown = false;  // kFailed: as far as the store has told yet
  std::string reason;       // kWaiting: TOO_FEW_ENGINES, NO_SLOT, OVERRIDDEN, ...; kStaging:
                            // MEMBER_UNREACHABLE; kFailed: POISONED, SYNC_BACKLOG, ...
  std::string detail;       // for people
  Epoch epoch;              // of the sync or the decision
  // Members that have it LOADED (staging), or serve it (committed, active): n of m.
  uint32_t done = 0;
  uint32_t members = 0;
  VersionKey superseded_by;              // kSuperseded
  std::vector<MemberProgress> progress;  // of the pool's members, unless dead, by name
  auto operator<=>(const WatchEvent&) const = default;
};
struct NotifyWatch {
  WatchId watch = 0;
  WatchEvent event;
};

// Whether the orchestrator may decide anything, which it may where it remembers of the fleet at
// least what others remember.
enum class Footing {
  kUnread,       // the store has not said yet what it holds, and what it remembers
  kSettled,      // it may
  kRecordsLost,  // the store or a member knows later records than these
  kStoreLost,    // the store has forgotten what it once acknowledged
};
std::string_view ToString(Footing footing);  // RECORDS_LOST, STORE_LOST; otherwise nothing
std::string_view Explain(Footing footing);   // for people: what is the matter, and what to do

// Something was lost, or is there again.
struct FootingChanged {
  Footing footing = Footing::kUnread;
};

using Effect = std::variant<SetDesired, EndSession, SetHolds, NotifyWatch, FootingChanged>;

// Answers, sent last. `status` carries a reason of docs/ERRORS.md.
struct Resolved {  // of LeaseAsked
  // Of a release: the newest that was released; its key's adapter is empty when nothing was.
  VersionInfo version;
  std::vector<fleet::Render> renders;  // of the pool's engine kinds, for MakeEngineName
  uint32_t loaded = 0;                 // READY members that have it LOADED now
  uint32_t members = 0;                // READY members
  uint32_t released = 0;               // leases that a release ended
};
struct Reply {
  RequestId request = 0;
  absl::Status status;
  Resolved resolved;  // LeaseAsked
  Epoch epoch;        // OverrideSet: of the sync or decision that serves it, 0 while it waits
};

}  // namespace lorry::sync
