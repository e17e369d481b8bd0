#include "services/engine_proxy/door/resolve.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "lib/base/did_you_mean.h"
#include "lib/base/strings.h"
#include "lib/fleet/selector.h"

namespace lorry::door {
namespace {

using fleet::NoAdapterMode;
using fleet::RowMode;
using fleet::Selector;
using proxy::DoorBinding;
using proxy::DoorRoute;
using proxy::DoorRow;
using proxy::DoorTable;
using Result = std::variant<Resolved, Held, Refused>;

// A decision reaches a member within a second or so, a load takes one to ten.
constexpr int kRetrySoonS = 1;
constexpr int kRetryLoadS = 2;
constexpr size_t kListedVersions = 8;

Refused NoAdapter(const DoorTable& table, std::string_view why) {
  const std::string one = table.rows.empty() ? "policy" : table.rows.front().adapter.value;
  return {400, "NO_ADAPTER",
          std::string(why) + "; name one in `model` or `lora_path`, for instance " + one + ", " +
              one + "@12 or " + one + "@eval"};
}

Refused Unknown(std::string_view reference, const std::vector<std::string>& known,
                std::string_view why = {}) {
  std::string message =
      "no adapter is called '" + std::string(reference.substr(0, 128)) + "' at this engine";
  if (!why.empty()) message += ": " + std::string(why);
  return {404, "UNKNOWN_ADAPTER", message + DidYouMean(reference, known)};
}

std::vector<std::string> Adapters(const DoorTable& table) {
  std::vector<std::string> known;
  for (const DoorRow& row : table.rows) known.push_back(row.adapter.value);
  for (const DoorBinding& binding : table.bindings) known.push_back(binding.name);
  return known;
}

std::vector<std::string> Aliases(const DoorTable& table, const AdapterName& adapter) {
  std::vector<std::string> known = {adapter.value};
  for (const fleet::AliasRoute& alias : table.aliases) {
    if (alias.adapter == adapter) known.push_back(adapter.value + "@" + alias.alias.value);
  }
  return known;
}

Refused NoAlias(const DoorTable& table, const Selector& selector, std::string_view reference) {
  const std::string words = selector.adapter.value + " " + selector.alias.value;
  return {404, "UNKNOWN_ADAPTER",
          selector.adapter.value + " has no alias '" + selector.alias.value + "'; `lorry alias " +
              words + " VERSION` makes one" +
              DidYouMean(reference, Aliases(table, selector.adapter))};
}

// As a client would ask for it here.
std::string Typed(const DoorTable& table, const VersionKey& key) {
  const fleet::DoorRules* rules = table.FindRules(key.adapter);
  const bool current = rules != nullptr && rules->current_run == key.run;
  return fleet::ToString({.adapter = key.adapter,
                          .kind = current ? Selector::Kind::kNumber : Selector::Kind::kVersion,
                          .run = key.run,
                          .number = key.number});
}

// As they can be asked for, the newest first; where a number was asked for, the nearest to it.
std::string LoadedVersions(const DoorTable& table, const AdapterName& adapter,
                           std::optional<VersionNumber> asked) {
  std::vector<VersionKey> loaded;
  for (const DoorRoute& route : table.routes) {
    if (route.key.adapter == adapter) loaded.push_back(route.key);
  }
  std::sort(loaded.rbegin(), loaded.rend());
  const auto how_far = [&](const VersionKey& key) {
    const uint64_t is = key.number.value, wanted = asked->value;
    return is > wanted ? is - wanted : wanted - is;
  };
  if (asked.has_value()) std::ranges::stable_sort(loaded, {}, how_far);
  std::string out;
  for (size_t i = 0; i < std::min(loaded.size(), kListedVersions); ++i) {
    out += (i == 0 ? "" : ", ") + Typed(table, loaded[i]);
  }
  if (loaded.size() > kListedVersions) return out + ", ...";
  return out.empty() ? "none" : out;
}

Refused NotLoaded(const DoorTable& table, const AdapterName& adapter, std::string_view reference) {
  return {409, "NOT_LOADED",
          std::string(reference) + " is not loaded at this engine; loaded of " + adapter.value +
              ": " + LoadedVersions(table, adapter, {})};
}

// A table has what is loaded. Whether there ever was such a version the store alone knows, and a
// request does not wait for it.
Refused NumberNotLoaded(const DoorTable& table, const Selector& selector,
                        std::string_view reference) {
  const std::string& adapter = selector.adapter.value;
  const std::string number = ToString(selector).substr(adapter.size() + 1);
  return {409, "NOT_LOADED",
          std::string(reference) + " is not loaded at this engine, and may never have been " +
              "published: `lorry versions " + adapter + "` lists what is stored, `lorry lease " +
              adapter + " " + number + "` has a stored version loaded; loaded of " + adapter +
              ": " + LoadedVersions(table, selector.adapter, selector.number)};
}

Resolved From(const DoorTable& table, const DoorRoute& route, Epoch epoch) {
  Resolved resolved{.name = route.name, .key = route.key, .digest = route.digest, .epoch = epoch};
  if (table.lag_known && route.lag != fleet::kLagNone) resolved.lag = route.lag;
  return resolved;
}

Held HoldAt(const fleet::DoorRules& rules, Refused too_late) {
  return {Held::Kind::kRow, rules.hold_limit_ms, std::move(too_late)};
}

Held WaitUntilLoaded(const DoorRow& row, const fleet::DoorRules& rules) {
  const std::string why = row.waits_for.empty() ? "its turn has not come" : row.waits_for;
  return {
      .kind = Held::Kind::kLoad,
      .limit_ms = rules.demand_wait_ms,
      .too_late = {503, "NOT_RESIDENT",
                   row.adapter.value + " is loaded on demand, and was not within the " +
                       std::to_string(rules.demand_wait_ms) + " ms that policy lets wait: " + why,
                   kRetryLoadS},
      .demands = {row.adapter}};
}

bool IsOlder(const VersionKey& key, const MinVersion& min) {
  if (min.run == RunId()) return key.number.value < min.number;
  return std::tie(key.run.value, key.number.value) < std::tie(min.run.value, min.number);
}

std::string ToString(const MinVersion& min) {
  const std::string number = std::to_string(min.number);
  return min.run == RunId() ? number : "r" + std::to_string(min.run.value) + "." + number;
}

// An explicit version or alias: it cannot become another by waiting.
Result Explicit(const DoorTable& table, const DoorRoute& route,
                const std::optional<MinVersion>& min) {
  if (min && IsOlder(route.key, *min)) {
    return Refused{409, "STALE_VERSION",
                   ToString(route.key) + " is older than X-Lorry-Min-Version " + ToString(*min)};
  }
  return From(table, route, Epoch());
}

std::string HowFarBehind(const DoorRoute& route) {
  if (route.lag != fleet::kLagNone) return std::to_string(route.lag) + " versions behind";
  return "not among the versions that led to the last decision (a rollback, a new run, or long "
         "ago)";
}

Result Open(const DoorTable& table, const DoorRow& row, const fleet::DoorRules& rules,
            const std::optional<MinVersion>& min) {
  const DoorRoute* route = table.FindRoute(row.target);
  if (route == nullptr && row.on_demand) return WaitUntilLoaded(row, rules);
  if (route == nullptr) return NotLoaded(table, row.adapter, row.adapter.value);
  Resolved resolved = From(table, *route, row.epoch);
  resolved.is_latest = true;
  resolved.in_flight = rules.in_flight;
  resolved.on_demand = row.on_demand;
  if (min && IsOlder(route->key, *min)) {
    return HoldAt(rules, {503, "CATCHING_UP",
                          row.adapter.value + " serves " + ToString(route->key) +
                              " here, older than X-Lorry-Min-Version " + ToString(*min),
                          kRetrySoonS});
  }
  if (row.behind && route->lag > rules.max_staleness && rules.stale != fleet::StaleMode::kTag) {
    Refused stale{409, "STALE_VERSION",
                  ToString(route->key) + " is " + HowFarBehind(*route) + ", policy allows " +
                      std::to_string(rules.max_staleness) +
                      "; the engine is behind the fleet, ask another or wait",
                  kRetryLoadS};
    if (rules.stale == fleet::StaleMode::kHold) return HoldAt(rules, std::move(stale));
    return stale;
  }
  return resolved;
}

Result Latest(const DoorTable& table, const DoorRow& row, const std::optional<MinVersion>& min) {
  const fleet::DoorRules defaults;
  const fleet::DoorRules* found = table.FindRules(row.adapter);
  const fleet::DoorRules& rules = found ? *found : defaults;
  switch (row.mode) {
    case RowMode::kOpen:
      return Open(table, row, rules, min);
    case RowMode::kHeld:
      return HoldAt(rules, {503, "HELD_TOO_LONG",
                            row.adapter.value + " is held for the sync of epoch " +
                                std::to_string(row.epoch.value) +
                                ", which has not been decided within the hold limit",
                            kRetrySoonS});
    case RowMode::kLocked:
      return HoldAt(rules, {503, "SYNC_IN_DOUBT",
                            row.adapter.value + " waits for the decision of epoch " +
                                std::to_string(row.epoch.value) +
                                ", which was not learned within the hold limit",
                            kRetrySoonS});
    case RowMode::kClosed:
      break;
  }
  if (row.catching_up) {
    const std::string version = "the decided version of " + row.adapter.value;
    return Refused{503, "CATCHING_UP",
                   row.waits_for.empty() ? version + " is still loading here"
                                         : version + " is not loaded here yet: " + row.waits_for,
                   kRetryLoadS};
  }
  return NotLoaded(table, row.adapter, row.adapter.value);
}

bool AllowsBase(const DoorTable& table, const AdapterName& adapter) {
  if (!adapter.empty()) {
    const fleet::DoorRules* rules = table.FindRules(adapter);
    return rules && rules->no_adapter == NoAdapterMode::kBase;
  }
  return std::any_of(table.rules.begin(), table.rules.end(), [](const fleet::DoorRules& rules) {
    return rules.no_adapter == NoAdapterMode::kBase;
  });
}

// Several adapters may share a door: LATEST needs exactly one that says so, BASE needs all of them.
Result NothingNamed(const DoorTable& table, const std::optional<MinVersion>& min) {
  const fleet::DoorRules* latest = nullptr;
  size_t latest_count = 0;
  size_t base_count = 0;
  for (const fleet::DoorRules& rules : table.rules) {
    if (rules.no_adapter == NoAdapterMode::kLatest) {
      latest = &rules;
      ++latest_count;
    }
    if (rules.no_adapter == NoAdapterMode::kBase) ++base_count;
  }
  if (latest_count == 1) {
    if (const DoorRow* row = table.FindRow(latest->adapter)) return Latest(table, *row, min);
  }
  if (base_count > 0 && base_count == table.rules.size()) return Resolved{};
  return NoAdapter(table,
                   "the request names no adapter, and no policy says which is meant "
                   "(no_adapter=latest does)");
}

const DoorRoute* FindVersion(const DoorTable& table, const VersionKey& key) {
  const auto it = std::find_if(table.routes.begin(), table.routes.end(),
                               [&](const DoorRoute& route) { return route.key == key; });
  return it != table.routes.end() ? &*it : nullptr;
}

Result Named(const DoorTable& table, const Selector& selector, std::string_view reference,
             const std::optional<MinVersion>& min) {
  const DoorRow* row = table.FindRow(selector.adapter);
  if (row == nullptr) return Unknown(reference, Adapters(table));
  const DoorRoute* route = nullptr;
  switch (selector.kind) {
    case Selector::Kind::kNumber:
      route = table.FindVersion(selector.adapter, selector.number);
      break;
    case Selector::Kind::kVersion:
      route = FindVersion(table, {selector.adapter, selector.run, selector.number});
      break;
    case Selector::Kind::kAlias: {
      const fleet::AliasRoute* alias = table.FindAlias(selector.adapter, selector.alias);
      if (alias == nullptr) return NoAlias(table, selector, reference);
      route = table.FindRoute(alias->target);
      break;
    }
    case Selector::Kind::kNewest:
      return Unknown(reference, Aliases(table, selector.adapter),
                     "what is stored but not decided on is known to the store alone; name the "
                     "adapter, its number or an alias");
    default:
      return Latest(table, *row, min);
  }
  if (route != nullptr) return Explicit(table, *route, min);
  if (selector.kind == Selector::Kind::kAlias) return NotLoaded(table, selector.adapter, reference);
  return NumberNotLoaded(table, selector, reference);
}

Result Bound(const DoorTable& table, const DoorBinding& binding,
             const std::optional<MinVersion>& min) {
  if (min) {
    return Refused{409, "STALE_VERSION",
                   binding.name +
                       " was loaded by a framework and has no version number, which "
                       "X-Lorry-Min-Version asks for"};
  }
  Resolved resolved{.name = binding.target,
                    .key = {AdapterName(binding.name), RunId(), VersionNumber()},
                    .digest = binding.digest,
                    .epoch = Epoch(),
                    .lag = {},
                    .on_demand = true,
                    .is_binding = true};
  if (table.FindRoute(binding.target) != nullptr) return resolved;
  const std::string why = binding.waits_for.empty() ? "its turn has not come" : binding.waits_for;
  return Held{.kind = Held::Kind::kLoad,
              .limit_ms = fleet::kDemandWaitMsDefault,
              .too_late = {503, "NOT_RESIDENT",
                           binding.name +
                               " left the engine to make room, and was not there again "
                               "within " +
                               std::to_string(fleet::kDemandWaitMsDefault) + " ms: " + why,
                           kRetryLoadS},
              .demands = {AwaitedAs(resolved)}};
}

Result Resolve(const DoorTable& table, std::string_view reference,
               const std::optional<MinVersion>& min_version) {
  if (const DoorBinding* binding = table.FindBinding(reference)) {
    return Bound(table, *binding, min_version);
  }
  if (const DoorRoute* route = table.FindRoute(EngineName(std::string(reference)))) {
    return Explicit(table, *route, min_version);
  }
  if (reference.empty()) return NothingNamed(table, min_version);
  const auto selector = fleet::ParseSelector(reference);
  if (!selector.ok()) {
    return Unknown(reference, Adapters(table), ToStd(selector.status().message()));
  }
  if (selector->kind == Selector::Kind::kBase) {
    if (AllowsBase(table, selector->adapter)) return Resolved{};
    return NoAdapter(table, "no policy here lets the base model answer (no_adapter=base does)");
  }
  return Named(table, *selector, reference, min_version);
}

}  // namespace

AdapterName AwaitedAs(const Resolved& resolved) {
  return resolved.is_binding ? AdapterName(resolved.name.value) : resolved.key.adapter;
}

Refused NotToldYet() {
  return {503, "CATCHING_UP",
          "this proxy has just started and has not been told by the orchestrator what its engine "
          "serves",
          kRetrySoonS};
}

Result ResolveOne(const DoorTable& table, std::string_view reference,
                  const std::optional<MinVersion>& min_version) {
  Result result = Resolve(table, reference, min_version);
  const Refused* refused = std::get_if<Refused>(&result);
  const bool final = refused != nullptr && refused->status < 500;
  return final && table.awaits_desired ? NotToldYet() : std::move(result);
}

}  // namespace lorry::door
