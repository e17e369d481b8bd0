#include "clients/cli/status_view.h"

#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "clients/cli/context.h"
#include "lib/base/a_few.h"
#include "lib/base/counted.h"
#include "lib/base/did_you_mean.h"
#include "lib/base/strings.h"

namespace lorry::cli {
namespace {

using lorry::sync::v1::MemberStatus;
using lorry::sync::v1::ObservedResidency;
using lorry::sync::v1::ObservedRow;
using lorry::sync::v1::PoolStatus;

// A line names so many engines; of more it says how many.
constexpr size_t kNamedMax = 4;
// More engines than a tall screen has lines.
constexpr int kLinesMax = 64;
// Three times as long as a proxy waits before it says again what it said.
constexpr int64_t kSilentMs = 6'000;

constexpr char kNothing[] = "-";

std::string Lower(const google::protobuf::EnumDescriptor& type, int value) {
  return absl::AsciiStrToLower(EnumWord(type, value));
}

Colour ColourOf(const std::string& state) {
  if (state == "READY") return Colour::kGood;
  if (state == "JOINING" || state == "ASLEEP" || state == "EXCLUDED") return Colour::kWarn;
  return Colour::kBad;
}

const ObservedRow* RowOf(const MemberStatus& member, const std::string& adapter) {
  for (const ObservedRow& row : member.observed().rows()) {
    if (row.adapter() == adapter) return &row;
  }
  return nullptr;
}

// kInCommon: without figures, which are of one engine alone.
enum class Said { kAll, kInCommon };

// "v12 fetching 45 %", "v12 FAILED STAGING_FAILED", "v12 UNPROVEN": what is neither leaving nor
// loaded with nothing left to say of it.
std::string Coming(const ObservedResidency& residency, Said said) {
  namespace pb = lorry::sync::v1;
  const std::string version = ShortVersion(residency.engine_name(), residency.version().adapter());
  switch (residency.state()) {
    case pb::RESIDENCY_STATE_FETCHING:
      if (!residency.reason().empty())
        return absl::StrCat(version, " fetching, ", residency.reason());
      return residency.bytes_total() == 0 || said == Said::kInCommon
                 ? version + " fetching"
                 : absl::StrCat(version, " fetching ",
                                residency.bytes_done() * 100 / residency.bytes_total(), " %");
    case pb::RESIDENCY_STATE_FETCHED:
      return residency.reason().empty() ? version + " fetched"
                                        : absl::StrCat(version, " fetched, ", residency.reason());
    case pb::RESIDENCY_STATE_LOADING:
      return version + " loading";
    case pb::RESIDENCY_STATE_FAILED:
      return absl::StrCat(version, " FAILED ", residency.reason());
    case pb::RESIDENCY_STATE_LOADED:
      return residency.reason().empty() ? "" : absl::StrCat(version, " ", residency.reason());
    default:
      return "";
  }
}

// " (gap 0.0003)": how far the engine's log-probabilities of the version are from its trainer's.
std::string GapOf(const MemberStatus& member, const std::string& engine_name) {
  for (const ObservedResidency& residency : member.observed().residencies()) {
    if (residency.engine_name() == engine_name && residency.has_gap())
      return absl::StrFormat(" (gap %.2g)", residency.gap().mean_ppm() / 1e6);
  }
  return "";
}

// The row is open on it, and the engine does not have it now: it is loaded on demand, and nobody has
// asked for it since another adapter needed its slot.
bool IsAway(const ObservedRow* row, const ObservedResidency& residency) {
  namespace pb = lorry::sync::v1;
  return row != nullptr && row->mode() == pb::ROW_MODE_OPEN &&
         row->target() == residency.engine_name() &&
         residency.state() == pb::RESIDENCY_STATE_FETCHED && residency.reason().empty();
}

Cell CellOf(const MemberStatus& member, const std::string& adapter, Said said = Said::kAll) {
  namespace pb = lorry::sync::v1;
  std::vector<std::string> parts;
  Colour colour = Colour::kPlain;
  const ObservedRow* row = RowOf(member, adapter);
  if (row != nullptr) {
    const std::string gap = said == Said::kAll ? GapOf(member, row->target()) : "";
    const std::string version = ShortVersion(row->target(), adapter) + gap;
    const bool open = row->mode() == pb::ROW_MODE_OPEN;
    colour = open ? Colour::kGood : Colour::kWarn;
    const std::string mode = Lower(*pb::RowMode_descriptor(), row->mode());
    parts.push_back(open ? version : version.empty() ? mode : absl::StrCat(version, " ", mode));
  }
  uint32_t in_flight = 0;
  for (const ObservedResidency& residency : member.observed().residencies()) {
    if (residency.version().adapter() != adapter) continue;
    in_flight += residency.in_flight();
    const std::string coming =
        IsAway(row, residency) ? "on disk until asked for" : Coming(residency, said);
    if (coming.empty()) continue;
    parts.push_back(coming);
    if (residency.state() == pb::RESIDENCY_STATE_FAILED) colour = Colour::kBad;
  }
  if (in_flight > 0 && said == Said::kAll) parts.push_back(absl::StrCat(in_flight, " in flight"));
  return {parts.empty() ? kNothing : absl::StrJoin(parts, ", "),
          parts.empty() ? Colour::kDim : colour};
}

// "READY, silent for 8 s": proxies repeat themselves, so that one who does not is stuck or cut off
// well before its session is over.
Cell StateOf(const MemberStatus& member, Said said) {
  const bool is_silent = member.observed_age_ms() >= kSilentMs && said == Said::kAll;
  const std::string silent =
      is_silent ? absl::StrCat(", silent for ", Age(member.observed_age_ms())) : "";
  return {member.state() + silent, is_silent ? Colour::kWarn : ColourOf(member.state())};
}

// Adapters that a pool decides on or a door has a row for.
std::set<std::string> AdaptersOf(const StatusMessage& status) {
  std::set<std::string> adapters;
  for (const PoolStatus& pool : status.pools()) adapters.insert(pool.adapter());
  for (const MemberStatus& member : status.members()) {
    for (const ObservedRow& row : member.observed().rows()) adapters.insert(row.adapter());
  }
  return adapters;
}

std::string RefOr(bool has, const common::v1::VersionRef& ref) { return has ? ToText(ref) : "-"; }

std::string PhaseOf(const PoolStatus& pool) {
  if (!pool.has_running()) return "idle";
  const std::string state = Lower(*lorry::sync::v1::SyncState_descriptor(), pool.running().state());
  return pool.has_running_version() ? absl::StrCat(state, " ", ToText(pool.running_version()))
                                    : state;
}

std::string WhyOf(const PoolStatus& pool) {
  std::string why = pool.running().reason();
  if (!pool.running().detail().empty()) {
    absl::StrAppend(&why, why.empty() ? "" : ": ", pool.running().detail());
  }
  // What runs without a word waits for its engines.
  if (why.empty()) why = Progress(pool.running());
  if (pool.has_override() && pool.running().reason() != "OVERRIDDEN") {
    absl::StrAppend(&why, why.empty() ? "" : "; ", "pinned to ", ToText(pool.override()));
  }
  return why;
}

std::string PoolLine(const PoolStatus& pool) {
  const std::string why = WhyOf(pool);
  return absl::StrCat(pool.adapter(), " in ", pool.pool(), ": latest ",
                      RefOr(pool.has_latest(), pool.latest()), " (epoch ", pool.epoch(), "), ",
                      PhaseOf(pool), why.empty() ? "" : ", ", why);
}

std::string MemberLine(const MemberStatus& member, const std::set<std::string>& adapters) {
  std::vector<std::string> parts = {absl::StrCat(member.member(), " ", member.state())};
  if (!member.detail().empty()) parts.push_back(member.detail());
  for (const std::string& adapter : adapters) {
    const Cell cell = CellOf(member, adapter);
    if (cell.text != kNothing) parts.push_back(absl::StrCat(adapter, " ", cell.text));
  }
  return absl::StrJoin(parts, "; ");
}

// Lines by what they are about, in order.
std::map<std::string, std::string> LinesOf(const StatusMessage& status) {
  std::map<std::string, std::string> lines;
  const std::set<std::string> adapters = AdaptersOf(status);
  for (const PoolStatus& pool : status.pools()) {
    lines[absl::StrCat("pool ", pool.adapter(), " ", pool.pool())] = PoolLine(pool);
  }
  for (const MemberStatus& member : status.members()) {
    lines[absl::StrCat("engine ", member.member())] = MemberLine(member, adapters);
  }
  return lines;
}

// "e1, e2", "12 engines".
std::string Named(const std::vector<std::string>& names) {
  return names.size() > kNamedMax ? Counted(names.size(), "engine") : absl::StrJoin(names, ", ");
}

// What several engines have in common is said once.
std::vector<std::string> EngineWarnings(const StatusMessage& status) {
  std::map<std::string, std::vector<std::string>> engines;  // by what is said of them
  for (const MemberStatus& member : status.members()) {
    for (const std::string* text :
         {&member.slot_need().shortage(), &member.slot_need().batch_cost()}) {
      if (!text->empty()) engines[absl::StrCat(": ", *text)].push_back(member.member());
    }
    // With another reason, or none, it joins by itself.
    const std::string& why = member.observed().health_detail();
    if (member.state() == "JOINING" && why.starts_with("ENGINE_"))
      engines[absl::StrCat(" cannot join: ", why)].push_back(member.member());
  }
  std::vector<std::string> warnings;
  for (const auto& [text, names] : engines) warnings.push_back(absl::StrCat(Named(names), text));
  return warnings;
}

// "llama 4096x32": hidden size and layers.
std::string BaseModelOf(const lorry::sync::v1::Observed& observed) {
  if (!observed.has_base_model()) return "-";
  const auto& base = observed.base_model();
  return absl::StrCat(base.architecture(), " ", base.hidden_size(),
                      base.layers() > 0 ? absl::StrCat("x", base.layers()) : "");
}

// vLLM always has a limit; where it does not tell it, nobody knows.
std::string SlotsOf(const lorry::sync::v1::EngineLimits& limits) {
  if (limits.slots() > 0) return absl::StrCat(limits.slots());
  return limits.kind() == lorry::sync::v1::ENGINE_KIND_VLLM ? "unknown" : "any";
}

}  // namespace

std::string ShortVersion(const std::string& engine_name, const std::string& adapter) {
  if (!engine_name.starts_with(adapter + "-v")) return engine_name;
  const std::string rest = engine_name.substr(adapter.size() + 1);
  return rest.substr(0, rest.rfind('-'));
}

namespace {

// Engines that share a line of the table.
struct Alike {
  std::vector<std::string> names;
  const MemberStatus* first;
};

// One each in a small fleet. In a large one engines in the same state share a line: nobody reads
// thousands, and the few that differ would be lost among them.
std::vector<Alike> EngineLines(const StatusMessage& status, const std::set<std::string>& adapters) {
  std::vector<Alike> lines;
  std::map<std::vector<std::string>, size_t> known;
  for (const MemberStatus& member : status.members()) {
    std::vector<std::string> stands = {IsLarge(status) ? member.state() : member.member()};
    for (const std::string& adapter : adapters) {
      if (IsLarge(status)) stands.push_back(CellOf(member, adapter, Said::kInCommon).text);
    }
    const auto [line, is_new] = known.try_emplace(std::move(stands), lines.size());
    if (is_new) lines.push_back({.names = {}, .first = &member});
    lines[line->second].names.push_back(member.member());
  }
  return lines;
}

Table EnginesAcross(const std::vector<Alike>& lines, const std::set<std::string>& adapters,
                    Said said) {
  std::vector<std::string> header = {"ENGINE", "STATE"};
  header.insert(header.end(), adapters.begin(), adapters.end());
  Table table(std::move(header));
  for (const Alike& line : lines) {
    std::vector<Cell> row = {{Named(line.names), Colour::kBold}, StateOf(*line.first, said)};
    for (const std::string& adapter : adapters) row.push_back(CellOf(*line.first, adapter, said));
    table.Add(std::move(row));
  }
  return table;
}

Table EnginesDown(const std::vector<Alike>& lines, const std::set<std::string>& adapters,
                  Said said) {
  Table table({"ENGINE", "STATE", "ADAPTER", "SERVES"});
  for (const Alike& line : lines) {
    const Cell name(Named(line.names), Colour::kBold);
    const Cell state = StateOf(*line.first, said);
    bool idle = true;
    for (const std::string& adapter : adapters) {
      const Cell cell = CellOf(*line.first, adapter, said);
      if (cell.text == kNothing) continue;
      idle = false;
      table.Add({name, state, adapter, cell});
    }
    if (idle) table.Add({name, state, kNothing, kNothing});
  }
  return table;
}

}  // namespace

bool IsLarge(const StatusMessage& status) { return status.members_size() > kLinesMax; }

Table EnginesByAdapter(const StatusMessage& status, size_t columns) {
  const std::set<std::string> adapters = AdaptersOf(status);
  const std::vector<Alike> lines = EngineLines(status, adapters);
  const Said said = IsLarge(status) ? Said::kInCommon : Said::kAll;
  Table across = EnginesAcross(lines, adapters, said);
  return across.Columns() <= columns ? across : EnginesDown(lines, adapters, said);
}

Table Pools(const StatusMessage& status) {
  Table table({"ADAPTER", "POOL", "LATEST", "EPOCH", "NEWEST", "PHASE", "WHY"});
  for (const PoolStatus& pool : status.pools()) {
    const bool idle = !pool.has_running();
    table.Add({{pool.adapter(), Colour::kBold},
               pool.pool(),
               RefOr(pool.has_latest(), pool.latest()),
               absl::StrCat(pool.epoch()),
               RefOr(pool.has_newest(), pool.newest()),
               {PhaseOf(pool), idle ? Colour::kDim : Colour::kWarn},
               WhyOf(pool)});
  }
  return table;
}

Table Engines(const StatusMessage& status) {
  namespace pb = lorry::sync::v1;
  Table table({"ENGINE", "POOL", "STATE", "KIND", "BASE MODEL", "LOADED", "SLOTS", "IN FLIGHT",
               "DOOR", "DETAIL"});
  for (const MemberStatus& member : status.members()) {
    const auto& observed = member.observed();
    int loaded = 0;
    uint32_t in_flight = 0;
    for (const ObservedResidency& residency : observed.residencies()) {
      if (residency.state() == pb::RESIDENCY_STATE_LOADED) ++loaded;
      in_flight += residency.in_flight();
    }
    const std::string kind = Lower(*pb::EngineKind_descriptor(), observed.limits().kind());
    std::string detail = member.detail();
    if (!observed.health_detail().empty() && detail != observed.health_detail()) {
      absl::StrAppend(&detail, detail.empty() ? "" : "; ", observed.health_detail());
    }
    table.Add({{member.member(), Colour::kBold},
               member.pool(),
               StateOf(member, Said::kAll),
               absl::StrCat(kind, observed.engine_version().empty() ? "" : " ",
                            observed.engine_version()),
               BaseModelOf(observed),
               absl::StrCat(loaded),
               SlotsOf(observed.limits()),
               absl::StrCat(in_flight),
               member.door_address(),
               detail});
  }
  return table;
}

std::string Progress(const lorry::sync::v1::WatchSyncResponse& progress) {
  namespace pb = lorry::sync::v1;
  std::map<std::string, std::vector<std::string>> members;
  for (const pb::MemberProgress& its : progress.progress()) {
    const std::string state = its.state() == pb::RESIDENCY_STATE_UNSPECIFIED
                                  ? "absent"
                                  : Lower(*pb::ResidencyState_descriptor(), its.state());
    members[its.active()            ? "active"
            : its.dropped().empty() ? state
                                    : its.dropped()]
        .push_back(its.member());
  }
  std::vector<std::string> parts;
  for (const auto& [word, names] : members) {
    parts.push_back(absl::StrCat(Named(names), " ", word));
  }
  return absl::StrJoin(parts, "; ");
}

std::vector<std::string> Warnings(const StatusMessage& status) {
  std::vector<std::string> warnings;
  if (!status.lost().empty())
    warnings.push_back(absl::StrCat(status.lost(), ": ", status.lost_detail()));
  if (!status.store_connected()) {
    warnings.push_back("the orchestrator does not reach the adapter-store: nothing new is synced");
  }
  for (const PoolStatus& pool : status.pools()) {
    for (const auto& version : pool.poisoned()) {
      warnings.push_back(absl::StrCat(pool.adapter(), " ", ToText(version), " is POISONED in ",
                                      pool.pool(),
                                      ": engines died on it; publish the next number"));
    }
    if (pool.has_override()) {
      warnings.push_back(absl::StrCat(pool.adapter(), " is pinned to ", ToText(pool.override()),
                                      " in ", pool.pool(),
                                      ", and newer versions wait; lorry rollback ", pool.adapter(),
                                      " --pool ", pool.pool(), " --lift ends the pin"));
    }
  }
  std::map<std::string, std::string> empty;  // by pool: an adapter of each is enough
  for (const PoolStatus& pool : status.pools()) {
    if (std::string why = WhyNoEngine(status, pool.pool()); !why.empty())
      empty.try_emplace(pool.pool(), absl::StrCat(pool.adapter(), ": ", why));
  }
  for (const auto& [pool, warning] : empty) warnings.push_back(warning);
  for (const std::string& warning : EngineWarnings(status)) warnings.push_back(warning);
  return warnings;
}

std::string WhyNoEngine(const StatusMessage& status, const std::string& pool) {
  std::set<std::string> with_engines;
  for (const MemberStatus& member : status.members()) with_engines.insert(member.pool());
  if (with_engines.empty() || with_engines.contains(pool)) return "";
  const std::vector<std::string> known(with_engines.begin(), with_engines.end());
  return absl::StrCat("no engine is in pool ", pool, ", only in ", AFew(known),
                      DidYouMean(pool, known));
}

std::vector<std::string> Changes(const StatusMessage& before, const StatusMessage& after) {
  const auto old_lines = LinesOf(before), new_lines = LinesOf(after);
  std::vector<std::string> changes;
  for (const auto& [key, line] : new_lines) {
    const auto old_line = old_lines.find(key);
    if (old_line == old_lines.end() || old_line->second != line) changes.push_back(line);
  }
  for (const auto& [key, line] : old_lines) {
    if (!new_lines.contains(key)) changes.push_back(key + " is gone");
  }
  return changes;
}

}  // namespace lorry::cli
