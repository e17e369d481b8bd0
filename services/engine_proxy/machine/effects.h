// What a proxy's machine asks for. Every effect is sent after the records of its Ready are durable,
// returns nothing, and is answered by an event with the same `op`. At most one operation on the
// engine's registry (Load, Unload) is outstanding. A driver that restarts knows nothing of earlier
// operations, and need not.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <variant>

#include "lib/fleet/observed.h"
#include "services/engine_proxy/machine/door_table.h"
#include "services/engine_proxy/machine/events.h"

namespace lorry::proxy {

// A directory of a framework's, and the base model by which fused projections are split.
struct BindingSource {
  std::string path;  // empty: it is a version, and the store's
  std::optional<peft::BaseModel> base = {};
};

// What the directory of a name holds, whoever writes it.
struct DirectoryContents {
  VersionKey key;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
};

// Fetches the image, verifies `digest`, writes the directory (image and rendered config) under a
// path of its own for `name`, synced. The path must be the same for the same name, and differ
// between names.
struct Fetch {
  OpId op = 0;
  EngineName name;
  VersionKey key;
  Digest digest;
  fleet::VersionTraits traits;
  fleet::Render render = fleet::Render::kPlain;
  BindingSource binding = {};
};
struct CancelFetch {
  OpId op = 0;
};  // of the fetch; answered by FetchCancelled, or by its own end if that was first
// Reads the directory again and compares with the digest: what a restarted proxy finds on disk is
// not trusted.
struct HashDirectory {
  OpId op = 0;
  EngineName name;
  Digest digest;
  fleet::Render render;
  std::string path;
};
// Reads which modules of which shapes the directory's image adapts, and compares with `base`.
struct CheckShapes {
  OpId op = 0;
  EngineName name;
  std::string path;
  peft::BaseModel base;
};
// Removes the directory, or keeps its file for reuse under another name.
struct DeleteDirectory {
  OpId op = 0;
  EngineName name;
  std::string path;
};

// Copies the directory beneath the roots that the operator allows, gives it canonical names, and
// writes it, rendered for `kind`, where Fetch would write it under the name that it comes to.
struct ReadBinding {
  OpId op = 0;
  std::string path;
  uint64_t ticket = 0;  // of the call whose tensors are meant instead; 0: the directory is
  fleet::EngineKind kind = fleet::EngineKind::kUnknown;
  std::optional<peft::BaseModel> base;
};

// On the engine; `boot` lets the driver drop what was meant for an earlier life of it.
struct List {
  OpId op = 0;
  BootId boot;
};
struct Load {
  OpId op = 0;
  BootId boot;
  EngineName name;
  std::string path;
  DirectoryContents contents = {};  // must be under that path wherever the engine reads it
};
// Asks for a token by the name, and for what the question needs besides.
struct Probe {
  OpId op = 0;
  BootId boot;
  EngineName name;
  fleet::ProbeQuestion question;
};
struct Unload {
  OpId op = 0;
  BootId boot;
  EngineName name;
  int64_t deadline_ms = 0;
};
struct AskOccupancy {
  OpId op = 0;
  BootId boot;
};  // what runs and waits, by the engine's own account; a DoorReport of the same moment comes first
struct PauseEngine {
  OpId op = 0;
  BootId boot;
  fleet::PauseKind kind;
  bool flush = false;
  int64_t deadline_ms = 0;  // one that waits for requests may take as long
};
struct ResumeEngine {
  OpId op = 0;
  BootId boot;
  std::string why = {};  // for people, where nobody asked for it
};

// A framework's call, as it came, under the number of its ticket.
struct PassCall {
  OpId op = 0;
  BootId boot;
  uint64_t ticket = 0;
  int64_t deadline_ms = 0;
};

struct SetDoorTable {
  DoorTable table;
};  // to the door; answered by DoorReport
struct SendObserved {
  fleet::Observed observed;
};  // to the orchestrator; latest wins
struct
    AnswerCall {  // to whoever made it; kOk: as the engine answers what it has done, or has answered
  uint64_t ticket = 0;
  Outcome outcome = Outcome::kOk;
  std::string reason = {};  // a word of docs/ERRORS.md
  std::string detail = {};
};

enum class BindAnswer {
  kDone,
  kAlreadyLoaded,  // under that name, with other bytes that requests use
  kNotBound,
  kNoDirectory,
  kRefused,
};
struct AnswerBinding {  // to whoever called, behind the table that it speaks of
  uint64_t ticket = 0;
  BindAnswer answer = BindAnswer::kDone;
  std::string reason;                        // a word of docs/ERRORS.md
  std::string detail;                        // for people
  std::string client_name;                   // that was asked for
  std::string path;                          // likewise, where it was to be bound
  uint64_t order = 0;                        // of what is done: counts bindings of this journal
  std::map<std::string, std::string> bound;  // every client's name and the directory that it named
};

using Effect =
    std::variant<Fetch, CancelFetch, HashDirectory, CheckShapes, DeleteDirectory, List, Load, Probe,
                 Unload, AskOccupancy, PauseEngine, ResumeEngine, SetDoorTable, SendObserved,
                 AnswerCall, ReadBinding, AnswerBinding, PassCall>;

}  // namespace lorry::proxy
