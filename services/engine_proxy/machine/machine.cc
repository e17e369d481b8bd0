#include "services/engine_proxy/machine/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/error.h"
#include "lib/base/first_after.h"
#include "lib/base/overload.h"
#include "services/engine_proxy/machine/bindings.h"
#include "services/engine_proxy/machine/door.h"
#include "services/engine_proxy/machine/engine.h"
#include "services/engine_proxy/machine/fetching.h"
#include "services/engine_proxy/machine/framework_calls.h"
#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/observe.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/rows.h"
#include "services/engine_proxy/machine/slots.h"
#include "services/engine_proxy/machine/state.h"
#include "services/engine_proxy/machine/uncounted.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {

struct Machine::State : Core {};

namespace {

// A lower term, an older document and one for another journal change nothing (FENCED).
void HandleDesired(Core& core, const DesiredReceived& event) {
  const fleet::Desired& desired = event.desired;
  if (desired.journal != core.journal.journal || desired.term < core.term) return;
  const bool same_reign = core.desired.has_value() && core.desired->term == desired.term;
  if (same_reign && desired.revision <= core.desired->revision) return;
  if (desired.term > core.term) {
    core.term = desired.term;
    core.Save("term", TermRecord{core.term});
  }
  core.desired = desired;
  MeetDesired(core);
}

void HandleSession(Core& core, bool up) {
  core.session = up;
  core.sent = fleet::Observed();
  core.sent_at = core.now - core.config.observed_ms;
}

void Handle(Core& core, const Event& event) {
  std::visit(Overload{
                 [&](const SessionUp&) { HandleSession(core, true); },
                 [&](const SessionDown&) { HandleSession(core, false); },
                 [&](const DesiredReceived& e) { HandleDesired(core, e); },
                 [&](const EngineSeen& e) { HandleSeen(core, e); },
                 [&](const EngineLost& e) { HandleLost(core, e); },
                 [&](const Listed& e) { HandleListed(core, e); },
                 [&](const LoadDone& e) { HandleLoadDone(core, e); },
                 [&](const ProbeDone& e) { HandleProbeDone(core, e); },
                 [&](const UnloadDone& e) { HandleUnloadDone(core, e); },
                 [&](const OccupancySeen& e) { HandleOccupancy(core, e); },
                 [&](const PauseDone& e) { HandlePauseDone(core, e); },
                 [&](const ResumeDone& e) { HandleResumeDone(core, e); },
                 [&](const PassDone& e) { HandlePassDone(core, e); },
                 [&](const FetchProgress& e) { HandleFetchProgress(core, e); },
                 [&](const FetchDone& e) { HandleFetchDone(core, e); },
                 [&](const FetchFailed& e) { HandleFetchFailed(core, e); },
                 [&](const FetchCancelled& e) { HandleFetchCancelled(core, e); },
                 [&](const DirectoryDeleted& e) { HandleDeleted(core, e); },
                 [&](const DirectoryHashed& e) { HandleHashed(core, e); },
                 [&](const ShapesChecked& e) { HandleShapes(core, e); },
                 [&](const DoorReport& e) { HandleReport(core, e); },
                 [&](const DoorDrains&) { core.door = DoorState::kDrains; },
                 [&](const DoorClosed&) { core.door = DoorState::kClosed; },
                 [&](const CallMade& e) { HandleCall(core, e); },
                 [&](const CallLeft& e) { HandleCallLeft(core, e); },
                 [&](const BindAsked& e) { HandleBind(core, e); },
                 [&](const UnbindAsked& e) { HandleUnbind(core, e); },
                 [&](const BindingRead& e) { HandleBindingRead(core, e); },
                 [&](const TimePassed&) {},
             },
             event);
}

// Whoever comes while the engine is asked to pause must find the door shut: what still reaches the
// engine is held there until it goes on.
void PutTableBeforePause(std::vector<Effect>& effects) {
  const auto is_pause = [](const Effect& e) { return std::holds_alternative<PauseEngine>(e); };
  const auto is_table = [](const Effect& e) { return std::holds_alternative<SetDoorTable>(e); };
  const auto pause = std::ranges::find_if(effects, is_pause);
  const auto table = std::find_if(pause, effects.end(), is_table);
  if (table != effects.end()) std::rotate(pause, table, table + 1);
}

void AdvanceServing(Core& core) {
  AdvanceRows(core);
  AdvanceDoor(core);
}

void Plan(Core& core) {
  AdvanceUncounted(core);
  AdvanceMemory(core);
  AdvanceResidencies(core);
  if (AdvanceBindings(core)) AdvanceResidencies(core);
  AdvanceServing(core);  // before unloads: what they wait for is a table without the name
  if (AdvanceUnloads(core)) AdvanceDoor(core);
  if (AdvanceCalls(core)) AdvanceServing(core);  // what rows stand on may not be believed any more
  // After a flip that it was held for, and never beside a call of the registry.
  if (AdvancePause(core)) AdvanceServing(core);
  AdvanceEngine(core);
  AskOccupancyIfNeeded(core);
  AnswerBindCalls(core);
  AnswerCalls(core);
  AdvanceObserved(core);
  PutTableBeforePause(core.effects);
}

absl::Status Invalid(const std::string& key) {
  return Error(absl::StatusCode::kInternal, "RECORDS_INVALID",
               absl::StrCat("record ", key, " has a value of another kind"));
}

void RestoreName(Core& core, const EngineName& name, const NameRecord& record) {
  Residency& residency = core.residencies[name];
  residency.name = name;
  residency.key = record.key;
  residency.digest = record.digest;
  residency.render = record.render;
  residency.traits = record.traits;
  residency.rules = {record.probe, record.probe_gap_ppm};
  residency.apart_ppm = record.apart_ppm;
  residency.slept_on = record.slept_on;
  residency.directory = Directory{.path = record.path, .asked = record.asked};
  residency.loaded_on = record.loaded_on;
  residency.tried_on = record.tried_on;
  residency.trial = record.trial;
  core.last_trial = std::max(core.last_trial, record.trial);
  // Until it is listed: the load may have been under way.
  residency.LeaveUncertain(record.loaded_on);
  residency.phase = at::Fetched();
  if (record.leased) residency.uncounted = Uncounted{.leased = true};
}

// Behind an unload without an answer a load without one may still wait, to read the directory.
void RestoreUnload(Core& core, const BootId& boot, const EngineName& name) {
  const auto it = core.residencies.find(name);  // names are restored first: "name/" < "unloading"
  if (it != core.residencies.end()) it->second.LeaveUncertain(boot);
}

absl::Status RestoreOne(Core& core, const std::string& key, const RecordValue& value) {
  const std::string last = key.substr(key.rfind('/') + 1);
  if (const auto* journal = std::get_if<JournalRecord>(&value)) core.journal = *journal;
  if (const auto* term = std::get_if<TermRecord>(&value)) core.term = term->term;
  if (const auto* boot = std::get_if<BootRecord>(&value)) core.journal_boot = boot->boot;
  if (const auto* wedged = std::get_if<WedgedRecord>(&value)) {
    core.wedged = *wedged;
    RestoreUnload(core, wedged->boot, wedged->name);
  }
  if (const auto* row = std::get_if<RowRecord>(&value)) {
    if (key != RowKey(AdapterName(last))) return Invalid(key);
    RestoreRow(core, AdapterName(last), *row);
  }
  if (const auto* name = std::get_if<NameRecord>(&value)) {
    if (key != NameKey(EngineName(last))) return Invalid(key);
    RestoreName(core, EngineName(last), *name);
  }
  if (const auto* binding = std::get_if<BindingRecord>(&value))
    RestoreBinding(core, key.substr(key.find('/') + 1), *binding);
  if (const auto* killer = std::get_if<KillerRecord>(&value))
    core.killers[EngineName(last)] = *killer;
  if (const auto* paused = std::get_if<PausedRecord>(&value)) RestorePause(core, *paused);
  if (const auto* asleep = std::get_if<AsleepRecord>(&value)) {
    core.memory.record = *asleep;
    core.asleep = true;
  }
  if (const auto* unloading = std::get_if<UnloadingRecord>(&value)) {
    core.unloading = *unloading;
    RestoreUnload(core, unloading->boot, unloading->name);
  }
  return absl::OkStatus();
}

std::optional<Tick> WakeAt(const Core& core) {
  FirstAfter wake(core.now);
  wake.At(ResidencyWakeAt(core));
  wake.At(RowWakeAt(core));
  wake.At(SlotWakeAt(core));
  wake.At(BindingsWakeAt(core));
  wake.At(PauseWakeAt(core));
  if (core.answers) wake.At(core.registry.due);
  if (core.answers) wake.At(core.registry.after);
  wake.At(UncountedWakeAt(core));
  wake.At(MemoryWakeAt(core));
  if (core.session) wake.At(core.sent_at + core.config.observed_ms);
  return wake.first();
}

}  // namespace

Machine::Machine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Machine::Machine(Machine&&) noexcept = default;
Machine& Machine::operator=(Machine&&) noexcept = default;
Machine::~Machine() = default;

Record Machine::FirstRecord(const Config& config) {
  return {"journal", JournalRecord{config.member, config.new_journal}};
}

absl::StatusOr<Machine> Machine::Restore(const Config& config, const Records& records, Tick now) {
  auto state = std::make_unique<State>();
  state->config = config;
  state->now = now;
  for (const auto& [key, value] : records) LORRY_RETURN_IF_ERROR(RestoreOne(*state, key, value));
  if (state->journal.journal.empty()) {
    const Record first = FirstRecord(config);
    state->journal = std::get<JournalRecord>(*first.value);
    state->Save(first.key, state->journal);
  }
  if (state->journal.member != config.member) {
    return Error(
        absl::StatusCode::kFailedPrecondition, "JOURNAL_FOREIGN",
        absl::StrCat("the journal belongs to member ", state->journal.member.value, ", not to ",
                     config.member.value, "; give each proxy a directory of its own"));
  }
  Plan(*state);
  return Machine(std::move(state));
}

void Machine::Step(Tick now, const Event& event) {
  if (now > state_->now) state_->now = now;
  Handle(*state_, event);
  Plan(*state_);
}

bool Machine::HasReady() const { return !state_->dirty.empty() || !state_->effects.empty(); }

Ready Machine::TakeReady() {
  Ready ready;
  for (auto& [key, value] : state_->dirty) ready.records.push_back({key, std::move(value)});
  state_->dirty.clear();
  ready.effects = std::exchange(state_->effects, {});
  ready.wake_at = WakeAt(*state_);
  return ready;
}

JournalId Machine::journal() const { return state_->journal.journal; }
Term Machine::term() const { return state_->term; }
Revision Machine::revision() const {
  return state_->desired.has_value() ? state_->desired->revision : Revision();
}
bool Machine::leaves() const { return state_->leaves; }
fleet::Observed Machine::Observe() const { return proxy::Observe(*state_); }
const DoorTable& Machine::door_table() const { return state_->table; }
RowsTaken Machine::rows_taken() const { return state_->taken; }
DemandTally Machine::demand_tally() const { return state_->demand_tally; }
FrameworkPauses Machine::framework_pauses() const {
  return {state_->pause.by_framework, state_->pause.overdue};
}
bool Machine::passes_call() const { return state_->memory.op != 0; }
std::string Machine::Describe() const { return proxy::Describe(*state_); }

}  // namespace lorry::proxy
