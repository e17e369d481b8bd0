#include "services/engine_proxy/machine/tables.h"

#include "services/engine_proxy/machine/pause_table.h"
#include "services/engine_proxy/machine/residency_table.h"
#include "services/engine_proxy/machine/row_table.h"

namespace lorry::proxy {
namespace {

// Each in the order of its enumeration.
constexpr std::string_view kResidencyStates[] = {
    "ABSENT",  "FETCHING",  "CANCELLING", "FETCHED", "HASHING", "CHECKING",  "DELETING",
    "LOADING", "VERIFYING", "PROBING",    "DOUBTED", "LOADED",  "UNLOADING", "FAILED"};
constexpr std::string_view kResidencyEvents[] = {
    "wanted",          "not wanted",   "listed",          "fetched",
    "fetch put off",   "fetch failed", "fetch ended",     "not proven",
    "proven",          "broken",       "not compared",    "fits",
    "misfit",          "unreadable",   "may be deleted",  "deleted",
    "not deleted",     "gets slot",    "listed as ours",  "not listed",
    "answered",        "broke off",    "engine lives",    "passed",
    "failed",          "vanished",     "may be unloaded", "unload unanswered",
    "unload answered", "unload hangs", "boot ended",      "may be tried"};
constexpr std::string_view kResidencyAsks[] = {
    "–",    "Fetch", "CancelFetch", "HashDirectory", "CheckShapes", "DeleteDirectory",
    "Load", "Probe", "Unload"};
constexpr std::string_view kResidencyWrites[] = {
    "–", "name", "no name", "name, unloading", "no unloading", "wedged, no unloading"};
constexpr std::string_view kRowStates[] = {"CLOSED", "OPEN", "HELD", "LOCKED"};
constexpr std::string_view kRowEvents[] = {"serves",    "stops serving", "decided",
                                           "goes on",   "cannot serve",  "hold",
                                           "hold ends", "lock",          "close"};
constexpr std::string_view kRowWrites[] = {
    "–",           "row: open, epoch, target", "row: not locked", "row: not open",
    "row: locked", "row: not open, epoch"};
constexpr std::string_view kPauseStates[] = {"NONE", "PAUSING", "PAUSED", "RESUMING"};
constexpr std::string_view kPauseEvents[] = {"wanted", "holds",      "holds not", "fails",
                                             "ends",   "resume due", "resumed",   "boot ended"};
constexpr std::string_view kPauseAsks[] = {"–", "PauseEngine", "ResumeEngine"};
constexpr std::string_view kPauseWrites[] = {"–", "paused", "no paused"};

template <typename Names, typename Value>
std::string_view NameIn(const Names& names, Value value) {
  return names[static_cast<size_t>(value)];
}

}  // namespace

std::vector<TableRow> ResidencyRows() {
  std::vector<TableRow> rows;
  for (const ResidencyTransition& t : ResidencyTable()) {
    rows.push_back({NameIn(kResidencyStates, t.from), NameIn(kResidencyEvents, t.event),
                    NameIn(kResidencyStates, t.to), NameIn(kResidencyAsks, t.ask),
                    NameIn(kResidencyWrites, t.write)});
  }
  return rows;
}

std::vector<TableRow> RowRows() {
  std::vector<TableRow> rows;
  for (const RowTransition& t : RowTable()) {
    rows.push_back({NameIn(kRowStates, t.from), NameIn(kRowEvents, t.event),
                    NameIn(kRowStates, t.to), "–", NameIn(kRowWrites, t.write)});
  }
  return rows;
}

std::vector<TableRow> PauseRows() {
  std::vector<TableRow> rows;
  for (const PauseTransition& t : PauseTable()) {
    rows.push_back({NameIn(kPauseStates, t.from), NameIn(kPauseEvents, t.event),
                    NameIn(kPauseStates, t.to), NameIn(kPauseAsks, t.ask),
                    NameIn(kPauseWrites, t.write)});
  }
  return rows;
}

}  // namespace lorry::proxy
