// DoorTable: everything the HTTP door needs to resolve a request, as one immutable value.
//
// The machine builds a whole table whenever something in it changes and emits SetDoorTable; the
// door hands it to each io_context, and once every one resolves by it, answers DoorReport{revision,
// counts}. Latest wins. Resolving by a table and counting the request are one critical section:
// after a report of revision R no request is admitted by an older table, so a name that R does not
// route and that the report counts 0 for has no request left.
//
// A plain value: share it as shared_ptr<const DoorTable>, any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/fleet/desired.h"
#include "lib/fleet/engine_name.h"

namespace lorry::proxy {

// A name that is LOADED and verified on this boot: the only names that may reach the engine.
struct DoorRoute {
  EngineName name;
  VersionKey key;
  Digest digest;
  fleet::Render render = fleet::Render::kPlain;
  // As of the last decision this proxy knows; kLagNone outside of that decision's lineage.
  uint32_t lag = fleet::kLagNone;
  auto operator<=>(const DoorRoute&) const = default;
};

// The row of one adapter: what `latest` (the bare adapter name) does.
//   OPEN    new requests go to `target`, which is among the routes; where it is not and it is loaded
//           on demand they wait until it is, at most rules.demand_wait_ms; then 503 NOT_RESIDENT
//   HELD    new requests wait, at most rules.hold_limit_ms; then 503 HELD_TOO_LONG
//   LOCKED  the same; then 503 SYNC_IN_DOUBT
//   CLOSED  503 with Retry-After while `catching_up` (a decision exists, and its version is not
//           loaded yet), otherwise 409 NOT_LOADED
struct DoorRow {
  AdapterName adapter;
  fleet::RowMode mode = fleet::RowMode::kClosed;
  Epoch epoch;        // of the decision OPEN serves; of the sync that holds or locks
  EngineName target;  // OPEN only
  bool catching_up = false;
  bool behind = false;     // OPEN, and a later decision is known: the target's lag counts
  bool on_demand = false;  // OPEN, and the target may be away from the engine
  std::string waits_for;   // for people: why it is away, while requests wait or it is catching up
  auto operator<=>(const DoorRow&) const = default;
};

// A framework's own name for an adapter at this door: new requests go to `target`, which is among the
// routes; where it is not they wait until it is, as at a row that is loaded on demand.
struct DoorBinding {
  std::string name;
  EngineName target;
  Digest digest;
  std::string waits_for;  // for people: why it is away, while requests wait
  auto operator<=>(const DoorBinding&) const = default;
};

struct DoorTable {
  Revision revision;  // counts tables of one proxy process, from 1
  BootId boot;        // empty while no engine answers; a route is good for this boot alone
  fleet::EngineKind engine = fleet::EngineKind::kUnknown;
  // False while there is no session with the orchestrator: replies say `X-Lorry-Lag: unknown`.
  bool lag_known = false;
  // No Desired document has come since this process began: aliases, rules and whatever the journal
  // does not hold are not known yet, so nobody may be told that something does not exist.
  bool awaits_desired = false;
  // A pause that Lorry began holds: replies may be slow.
  bool paused = false;
  // The engine's memory is released, or is to be once what runs has ended: nothing is admitted.
  bool asleep = false;
  // Likewise while a framework gives it other weights.
  bool updating = false;
  // Not 0 while a framework's own pause is asked for or holds: new requests wait for its end, at most
  // so long, and what their names stand for is decided then.
  uint32_t framework_pause_ms = 0;
  // How many adapters the engine holds at once; 0: any number.
  uint32_t slots = 0;
  // All sorted, for the binary searches below. An adapter without a row is UNKNOWN_ADAPTER; an
  // alias whose target is not among the routes is NOT_LOADED. Both are CATCHING_UP while
  // `awaits_desired`.
  std::vector<DoorRow> rows;
  std::vector<DoorRoute> routes;
  std::vector<DoorBinding> bindings;  // each beats a selector of the same spelling
  std::vector<fleet::AliasRoute> aliases;
  std::vector<fleet::DoorRules> rules;
  auto operator<=>(const DoorTable&) const = default;

  // Lookups by binary search; null where there is none.
  const DoorRow* FindRow(const AdapterName& adapter) const;
  const DoorBinding* FindBinding(std::string_view name) const;
  const DoorRoute* FindRoute(const EngineName& name) const;
  const fleet::DoorRules* FindRules(const AdapterName& adapter) const;
  const fleet::AliasRoute* FindAlias(const AdapterName& adapter, const AliasName& alias) const;
  // `policy@12`: the loaded version with that number within the adapter's current run.
  const DoorRoute* FindVersion(const AdapterName& adapter, VersionNumber number) const;
};

}  // namespace lorry::proxy
