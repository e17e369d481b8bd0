// What a proxy's machine is told. Plain values; drivers and the door build them, the simulator too.
//
// Every answer names the operation (`op`) of the effect that asked; an answer whose operation the
// machine has forgotten (a new boot, a cancelled fetch) is ignored. Duplicates are harmless.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lib/fleet/desired.h"
#include "lib/fleet/engine_name.h"
#include "lib/fleet/probe.h"
#include "lib/peft/base_model.h"

namespace lorry::proxy {

// Counts operations of one proxy process; 0 is none.
using OpId = uint64_t;

// Ends of an operation on the engine.
enum class Outcome {
  kOk,
  kRefused,  // of a load or probe: the engine does not take the adapter, and says so in its words
  kFailed,   // the engine says that it did not happen, and that says nothing of the adapter
  kUnsent,   // it never reached the engine, and no answer of the engine's was heard
  kBroken,   // the connection broke, or the engine itself failed at it: it may have happened, and
             // the engine may be dying of it
  kUnknown,  // no answer within the driver's deadline: it may have happened, or may happen yet
};
inline bool MayHaveHappened(Outcome outcome) {
  return outcome == Outcome::kBroken || outcome == Outcome::kUnknown;
}

// --- the orchestrator's session
struct SessionUp {};  // attached; Observed documents may be sent
struct SessionDown {};
struct DesiredReceived {
  fleet::Desired desired;
};

// --- the engine's driver
struct EngineSeen {  // it answers, and this is its start marker; repeated as often as the driver
                     // polls
  BootId boot;
  fleet::EngineLimits limits;
  std::string version;
  std::optional<std::string> problem = {};  // preflight: the missing or wrong flag, for people;
                                            // with one the member stays JOINING
  std::optional<bool> asleep = {};          // memory released; none where the engine does not say
  OpId passed = 0;  // the last PassCall that was answered before this look began; 0: none was
  std::string warning = {};  // preflight: what is amiss and keeps it from nothing, for people
  // What it serves. Without, no adapter is loaded, unless the operator vouches for all of them.
  std::optional<peft::BaseModel> base_model = {};
  bool base_unchecked = false;
};
struct EngineLost {      // it does not answer; routes stay, the engine's own errors pass
  bool ended = false;    // its process is gone (connection refused, exit seen): what it was loading
                         // may have killed it
  std::string why = {};  // for people
};
struct Listed {  // List: names the engine has registered, with their paths (empty where the engine
                 // hides them)
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  std::map<EngineName, std::string> paths;
};
struct LoadDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  std::string reason;
  std::string detail;
};
struct ProbeDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  std::string reason;
  std::string detail;
  fleet::ProbeAnswer answer = {};
  bool others_heard = false;  // the engine went on answering other requests meanwhile
};
struct UnloadDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
};  // kUnknown: its deadline passed
struct OccupancySeen {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  uint64_t running_and_waiting = 0;
  // Adapters that these name, from an engine that says so.
  std::optional<std::set<EngineName>> names = {};
};
struct PauseDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  std::string reason = {};
  std::string detail = {};
};
struct ResumeDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
};
struct PassDone {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
  std::string reason = {};
  std::string detail = {};
};

// --- the fetcher and its directories
struct FetchProgress {
  OpId op = 0;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  std::string waits_for = {};  // for people: another node that does not have it yet
};
struct FetchDone {  // the directory is complete, rendered, synced, and its digest is the wanted one
  OpId op = 0;
  std::string path;
};
struct FetchFailed {
  OpId op = 0;
  std::string reason;  // a word of docs/ERRORS.md
  std::string detail;
  // A refusal that the same bytes would meet again: no retry until asked anew.
  bool permanent = false;
  bool away = false;  // nobody answered: not this member's fault, so it waits without being FAILED
};
struct FetchCancelled {
  OpId op = 0;
};  // nothing writes the directory any more, it is removed
struct DirectoryDeleted {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;
};
struct DirectoryHashed {
  OpId op = 0;
  bool matches = false;
};
struct ShapesChecked {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;  // otherwise the image could not be read, and nothing is known
  bool fit = false;
  std::string detail;  // for people: which module does not
  // That the image carries; nothing where it is not known that the engine has all of its tokens.
  peft::Reference reference = {};
  // For people: in what the base model that it was trained on differs from the engine's.
  std::string differences = {};
};

// --- the door
struct DoorReport {
  Revision revision;  // every io_context resolves by this table or a later one
  std::map<EngineName, uint32_t> in_flight;  // counts as of now; a name without an entry has none
  // Adapters that requests wait for until they are loaded; first the one whose first request came
  // first.
  std::vector<AdapterName> waiting = {};
  // Of names that are loaded on demand: the number of the last request that was admitted to it.
  std::map<EngineName, uint64_t> last_admitted = {};
  // Of `in_flight`, what did not ask for `latest`: it named the version, or an alias of it.
  std::map<EngineName, uint32_t> by_name = {};
  // Counts what the door says, as reports may overtake each other; 0: they do not.
  uint64_t sequence = 0;
};

// It accepts nobody any more, for good, and lets end what the engine has of its requests. An engine
// that is paused would keep them from ending.
struct DoorDrains {};
// Its listeners are closed, no connection is left, and it admits nothing any more, for good.
struct DoorClosed {};

// What a framework that knows nothing of Lorry asks of the engine at the door (docs/SEMANTICS.md §9).
struct PauseCall {
  fleet::PauseKind kind = fleet::PauseKind::kAbort;
  bool flush = false;  // the engine's caches are dropped
};
struct ContinueCall {};
// Parts of the engine's memory, by the engine's own names of them.
using MemoryTags = std::set<std::string>;
inline constexpr std::string_view kWeightsTag = "weights";
// To give memory back to its host, and to take it again.
struct ReleaseCall {
  MemoryTags tags;
};
struct WakeCall {
  MemoryTags tags;
};
// To change the weights of the base model, or whatever else adapters answer by.
struct WeightsCall {};
using FrameworkCall = std::variant<PauseCall, ContinueCall, ReleaseCall, WakeCall, WeightsCall>;
// Tickets count the calls of one proxy process, from 1; each is answered by one AnswerCall.
struct CallMade {
  uint64_t ticket = 0;
  FrameworkCall call;
};
struct CallLeft {
  uint64_t ticket = 0;
};  // its caller waits for the answer no more; what began goes on
// What frameworks that know nothing of Lorry ask of the engine's adapters (docs/SEMANTICS.md §9).
// Tickets count the calls of one proxy process, from 1; each is answered by one AnswerBinding.
struct BindAsked {
  uint64_t ticket = 0;
  std::string client_name;
  std::string path;         // of the directory, as the caller wrote it
  bool in_place = false;    // also while requests use other bytes of that name
  bool as_tensors = false;  // the adapter is in the call itself; then `path` says so to people
};
struct UnbindAsked {
  uint64_t ticket = 0;
  std::string client_name;
};
// Answers ReadBinding.
struct BindingRead {
  OpId op = 0;
  Outcome outcome = Outcome::kOk;  // otherwise nothing of it is kept
  std::string reason;
  std::string detail;
  bool missing = false;  // there is no such directory
  EngineName name;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
  // Where it is written for the engine; empty: what `name` has there is broken.
  std::string path;
};

struct TimePassed {};  // `wake_at` came

using Event =
    std::variant<SessionUp, SessionDown, DesiredReceived, EngineSeen, EngineLost, Listed, LoadDone,
                 ProbeDone, UnloadDone, OccupancySeen, PauseDone, ResumeDone, PassDone,
                 FetchProgress, FetchDone, FetchFailed, FetchCancelled, DirectoryDeleted,
                 DirectoryHashed, ShapesChecked, DoorReport, DoorDrains, DoorClosed, CallMade,
                 CallLeft, BindAsked, UnbindAsked, BindingRead, TimePassed>;

}  // namespace lorry::proxy
