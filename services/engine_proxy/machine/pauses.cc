#include "services/engine_proxy/machine/pauses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "lib/base/transition.h"
#include "services/engine_proxy/machine/framework_calls.h"
#include "services/engine_proxy/machine/pause_table.h"
#include "services/engine_proxy/machine/quiesce.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

using pause_at::None;
using pause_at::Paused;
using pause_at::Pausing;
using pause_at::Resuming;

// A pause that got no answer may reach the engine after the resume that was sent later. It
// certainly has by the time that a second resume, sent poll_ms after the first, is answered.
constexpr uint32_t kResumesAfterDoubt = 2;

void Enter(Pause& pause, PauseState next) {
  switch (next) {
    case PauseState::kNone:
      pause.phase = None();
      return;
    case PauseState::kPausing:
      pause.phase = Pausing();
      return;
    case PauseState::kPaused:
      pause.phase = Paused();
      return;
    case PauseState::kResuming:
      if (std::holds_alternative<Resuming>(pause.phase)) return;
      const bool is_doubtful = pause.is_doubtful || std::holds_alternative<Pausing>(pause.phase);
      pause.phase = Resuming{.needed = is_doubtful ? kResumesAfterDoubt : 1};
      return;
  }
}

void AskFor(Core& core, PauseAsk ask) {
  Pause& pause = core.pause;
  if (ask == PauseAsk::kNothing) return;
  if (ask == PauseAsk::kPause) {
    auto& pausing = std::get<Pausing>(pause.phase);
    pausing.op = core.NewOp();
    core.effects.push_back(PauseEngine{pausing.op, core.boot, pause.wanted.kind, pause.wanted.flush,
                                       pause.wanted.deadline_ms});
    return;
  }
  auto& resuming = std::get<Resuming>(pause.phase);
  resuming.retry_at = core.now + core.config.poll_ms;
  if (!core.answers || core.boot.empty()) return;  // asked when it answers again
  resuming.op = core.NewOp();
  core.effects.push_back(ResumeEngine{
      resuming.op, core.boot, pause.was_overdue ? "no framework let it go on in time" : ""});
}

void WriteDown(Core& core, PauseWrite write) {
  if (write == PauseWrite::kPaused) core.Save("paused", *core.pause.record);
  if (write != PauseWrite::kNotPaused) return;
  core.pause.record.reset();
  core.Erase("paused");
}

// The one place where the pause changes its state.
bool Move(Core& core, PauseEvent event) {
  const auto from = static_cast<PauseState>(core.pause.phase.index());
  const PauseTransition* row = Take(PauseTable(), core.taken.pause, from, event);
  if (row == nullptr) return false;
  Enter(core.pause, row->to);
  AskFor(core, row->ask);
  WriteDown(core, row->write);
  return true;
}

bool EndsAll(fleet::PauseKind kind) {
  return kind == fleet::PauseKind::kAbort || kind == fleet::PauseKind::kWait;
}

// Gives the pause up: the rows that it was for wait for their requests to end instead.
void GiveUp(Core& core, const std::string& why) {
  for (const auto& [adapter, epoch] : core.pause.rows) {
    const auto row = core.rows.find(adapter);
    if (row != core.rows.end()) row->second.pause_given_up = {epoch, why};
  }
  core.pause.rows.clear();
}

// Makes a framework's pause Lorry's own, which ends with this process at the latest.
void TakeFromFramework(Core& core) {
  core.pause.by_framework = false;
  core.pause.record->framework_until = 0;
  WriteDown(core, PauseWrite::kPaused);
}

// The first row that wants a pause, and all that want the same.
void BeginIfWanted(Core& core) {
  if (!core.desired.has_value() || !IsRegistryQuiet(core) || core.memory.op != 0) return;
  Pause& pause = core.pause;
  for (const fleet::DesiredRow& wanted : core.desired->rows) {
    const auto row = core.rows.find(wanted.adapter);
    if (row == core.rows.end() || !WantsPause(core, wanted, row->second)) continue;
    const fleet::DesiredPause& quiesce = wanted.quiesce;
    if (pause.rows.empty()) pause.wanted = quiesce;
    if (quiesce.kind != pause.wanted.kind || quiesce.flush != pause.wanted.flush) continue;
    pause.rows[wanted.adapter] = wanted.epoch;
    pause.wanted.deadline_ms = std::min(pause.wanted.deadline_ms, quiesce.deadline_ms);
  }
  if (pause.rows.empty()) return;
  pause.record = PausedRecord{core.boot, pause.wanted.kind};
  pause.until = core.now + pause.wanted.deadline_ms;
  Move(core, PauseEvent::kWanted);
}

void EndIfOverdue(Core& core) {
  // While memory is released a pause has no deadline; its time begins anew afterwards.
  if (core.asleep) core.pause.until = core.now + core.config.framework_pause_ms;
  if (core.now < core.pause.until) return;
  ++core.pause.overdue;
  core.pause.was_overdue = true;
  AnswerServed(core, Outcome::kUnknown, "CALL_TIMEOUT",
               "the engine did not pause within --framework-pause-deadline-ms");
  TakeFromFramework(core);
  Move(core, PauseEvent::kEnds);
}

void EndIfOver(Core& core) {
  if (core.pause.by_framework) return EndIfOverdue(core);
  std::erase_if(core.pause.rows, [&](const auto& entry) {
    const fleet::DesiredRow* wanted = core.WantedRow(entry.first);
    const auto row = core.rows.find(entry.first);
    return wanted == nullptr || row == core.rows.end() ||
           !NeedsPause(core, *wanted, row->second, entry.second);
  });
  if (core.now >= core.pause.until) GiveUp(core, "");
  const bool may_last = core.session && core.door == DoorState::kOpen;
  if (!core.pause.rows.empty() && may_last) return;
  core.pause.rows.clear();
  Move(core, PauseEvent::kEnds);
}

}  // namespace

void RestorePause(Core& core, const PausedRecord& record) {
  Pause& pause = core.pause;
  pause.record = record;
  pause.wanted = {.kind = record.kind};
  pause.phase = Resuming{.needed = kResumesAfterDoubt};
  if (record.framework_until == 0) return;
  pause.by_framework = pause.is_doubtful = true;
  pause.until = std::min(record.framework_until, core.now + core.config.framework_pause_ms);
  pause.phase = Paused();
}

void BeginForFramework(Core& core, const PauseCall& call) {
  Pause& pause = core.pause;
  const Tick until = core.now + core.config.framework_pause_ms;
  const bool is_again = std::exchange(pause.by_framework, true);
  pause.was_overdue = false;
  pause.has_ended_all = pause.has_ended_all && is_again;
  pause.wanted = {call.kind, core.config.framework_pause_ms, call.flush};
  pause.record = PausedRecord{core.boot, call.kind, until};
  pause.until = until;
  Move(core, is_again ? PauseEvent::kAskedAgain : PauseEvent::kWanted);
  std::get<Pausing>(pause.phase).is_again = is_again;
}

void EndForFramework(Core& core) {
  core.pause.was_overdue = false;
  if (core.pause.by_framework) {
    TakeFromFramework(core);
    Move(core, PauseEvent::kEnds);
  } else {
    core.pause.record = PausedRecord{.boot = core.boot};
    Move(core, PauseEvent::kLetGo);
  }
}

void RenewFrameworkPause(Core& core) {
  if (!core.pause.by_framework) return;
  core.pause.until = core.pause.record->framework_until = core.now + core.config.framework_pause_ms;
  WriteDown(core, PauseWrite::kPaused);
}

// A load, a probe or an unload would not be answered before the engine goes on.
bool IsRegistryQuiet(const Core& core) {
  return !IsUnloading(core) &&
         std::none_of(core.residencies.begin(), core.residencies.end(), [](const auto& entry) {
           return entry.second
               .template IsAny<at::Loading, at::Verifying, at::Probing, at::Doubted>();
         });
}

bool IsPaused(const Core& core) { return !std::holds_alternative<None>(core.pause.phase); }

bool IsHeldByFramework(const Core& core) {
  return core.pause.by_framework && std::holds_alternative<Paused>(core.pause.phase);
}

bool HasEndedAll(const Core& core) { return core.pause.by_framework && core.pause.has_ended_all; }

bool IsPausedOrToBe(const Core& core) {
  if (IsPaused(core) || IsRestAsked(core) || core.memory.op != 0) return true;
  if (!core.desired.has_value()) return false;
  return std::ranges::any_of(core.desired->rows, [&](const fleet::DesiredRow& wanted) {
    if (wanted.quiesce.kind == fleet::PauseKind::kNone) return false;
    const auto row = core.rows.find(wanted.adapter);
    return row != core.rows.end() && WantsPause(core, wanted, row->second);
  });
}

bool IsResuming(const Core& core) { return std::holds_alternative<Resuming>(core.pause.phase); }

bool IsPausedFor(const Core& core, const AdapterName& adapter, Epoch epoch) {
  const auto row = core.pause.rows.find(adapter);
  const bool holds = std::holds_alternative<Paused>(core.pause.phase);
  return holds && row != core.pause.rows.end() && row->second == epoch;
}

void HandlePauseDone(Core& core, const PauseDone& event) {
  const auto* pausing = std::get_if<Pausing>(&core.pause.phase);
  if (pausing == nullptr || event.op == 0 || pausing->op != event.op) return;
  // Where a pause on top of a framework's own fails, the engine is paused all the same.
  const bool holds = event.outcome == Outcome::kOk || pausing->is_again;
  if (core.pause.by_framework) {
    core.pause.is_doubtful = core.pause.is_doubtful || MayHaveHappened(event.outcome);
    // Requests that wait for the end of an earlier process's pause are not ended by a new one.
    if (event.outcome == Outcome::kOk && EndsAll(core.pause.wanted.kind) && !core.pause.is_doubtful)
      core.pause.has_ended_all = true;
    AnswerServed(core, event.outcome, event.reason, event.detail);
    if (!holds) TakeFromFramework(core);
  }
  if (holds) {
    Move(core, PauseEvent::kHolds);
    return;
  }
  GiveUp(core, absl::StrCat(event.reason, ": ", event.detail));
  Move(core, PauseEvent::kFails);
}

void HandleResumeDone(Core& core, const ResumeDone& event) {
  auto* resuming = std::get_if<Resuming>(&core.pause.phase);
  if (resuming == nullptr || event.op == 0 || resuming->op != event.op) return;
  resuming->op = 0;
  if (event.outcome != Outcome::kOk) return;
  resuming->retry_at = core.now + core.config.poll_ms;
  if (--resuming->needed > 0) return;
  Move(core, PauseEvent::kResumed);
  core.pause.is_doubtful = false;
  AnswerServed(core, Outcome::kOk, "", "");
}

void ForgetPause(Core& core) {
  Pause& pause = core.pause;
  if (!IsPaused(core) || pause.record->boot == core.boot) return;
  pause.rows.clear();
  pause.by_framework = pause.is_doubtful = false;
  // Whoever wanted the engine to go on has that now.
  AnswerServed(core, IsResuming(core) ? Outcome::kOk : Outcome::kBroken, "ENGINE_RESTARTED",
               "the engine was started again meanwhile, and is not paused");
  Move(core, PauseEvent::kBootEnded);
}

bool AdvancePause(Core& core) {
  const PausePhase& phase = core.pause.phase;
  const size_t before = phase.index();
  if (!IsPaused(core)) {
    BeginIfWanted(core);
  } else if (!IsResuming(core)) {
    EndIfOver(core);
  }
  // Asked until the engine says that it goes on; a resume of an engine that runs is harmless. An
  // answer is waited for, however late it is: the driver always gives one.
  const auto* resuming = std::get_if<Resuming>(&phase);
  if (resuming != nullptr && resuming->op == 0 && core.now >= resuming->retry_at && core.answers)
    Move(core, PauseEvent::kResumeDue);
  return phase.index() != before;
}

std::optional<Tick> PauseWakeAt(const Core& core) {
  if (!IsPaused(core)) return std::nullopt;
  const auto* resuming = std::get_if<Resuming>(&core.pause.phase);
  return resuming != nullptr ? resuming->retry_at : core.pause.until;
}

}  // namespace lorry::proxy
