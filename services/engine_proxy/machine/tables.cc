#include "services/engine_proxy/machine/tables.h"

#include <string>
#include <string_view>

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
    "wanted",          "not wanted",        "listed",
    "fetched",         "fetch put off",     "fetch failed",
    "fetch ended",     "not proven",        "proven",
    "broken",          "not compared",      "fits",
    "misfit",          "unreadable",        "may be deleted",
    "deleted",         "not deleted",       "gets slot",
    "listed as ours",  "not listed",        "answered",
    "broke off",       "engine lives",      "passed",
    "failed",          "vanished",          "not believed",
    "may be unloaded", "unload unanswered", "unload answered",
    "unload hangs",    "boot ended",        "may be tried"};
constexpr std::string_view kResidencyAsks[] = {
    "–",    "Fetch", "CancelFetch", "HashDirectory", "CheckShapes", "DeleteDirectory",
    "Load", "Probe", "Unload"};
constexpr std::string_view kResidencyWrites[] = {
    "–", "name", "no name", "name, unloading", "no unloading", "wedged, no unloading"};
constexpr std::string_view kRowStates[] = {"CLOSED", "OPEN", "HELD", "LOCKED"};
constexpr std::string_view kRowEvents[] = {"serves",       "stops serving", "decided",   "goes on",
                                           "cannot serve", "hold",          "hold ends", "lock",
                                           "close",        "leaves"};
constexpr std::string_view kRowWrites[] = {
    "–",           "row: open, epoch, target", "row: not locked", "row: not open",
    "row: locked", "row: not open, epoch",     "row: waits"};
constexpr std::string_view kPauseStates[] = {"NONE", "PAUSING", "PAUSED", "RESUMING"};
constexpr std::string_view kPauseEvents[] = {"wanted",     "holds",       "fails",
                                             "ends",       "resume due",  "resumed",
                                             "boot ended", "asked again", "let go"};
constexpr std::string_view kPauseAsks[] = {"–", "PauseEngine", "ResumeEngine"};
constexpr std::string_view kPauseWrites[] = {"–", "paused", "no paused"};

}  // namespace

std::vector<TableRow> ResidencyRows() {
  std::vector<TableRow> rows;
  for (const ResidencyTransition& t : ResidencyTable()) {
    rows.push_back({std::string(NameIn(kResidencyStates, t.from)),
                    std::string(NameIn(kResidencyEvents, t.event)),
                    std::string(NameIn(kResidencyStates, t.to)),
                    std::string(NameIn(kResidencyAsks, t.ask)),
                    std::string(NameIn(kResidencyWrites, t.write))});
  }
  return rows;
}

std::vector<TableRow> RowRows() {
  std::vector<TableRow> rows;
  for (const RowTransition& t : RowTable()) {
    rows.push_back({std::string(NameIn(kRowStates, t.from)),
                    std::string(NameIn(kRowEvents, t.event)), std::string(NameIn(kRowStates, t.to)),
                    "–", std::string(NameIn(kRowWrites, t.write))});
  }
  return rows;
}

std::vector<TableRow> PauseRows() {
  std::vector<TableRow> rows;
  for (const PauseTransition& t : PauseTable()) {
    rows.push_back({std::string(NameIn(kPauseStates, t.from)),
                    std::string(NameIn(kPauseEvents, t.event)),
                    std::string(NameIn(kPauseStates, t.to)), std::string(NameIn(kPauseAsks, t.ask)),
                    std::string(NameIn(kPauseWrites, t.write))});
  }
  return rows;
}

}  // namespace lorry::proxy
