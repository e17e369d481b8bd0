#include "services/engine_proxy/machine/pauses.h"

#include "lib/base/transition.h"
#include "services/engine_proxy/machine/pause_table.h"

namespace lorry::proxy {
namespace {

using pause_at::None;
using pause_at::Paused;
using pause_at::Pausing;
using pause_at::Resuming;

bool IsDrain(const Pause& pause) {
  return pause.record.has_value() && pause.record->kind == fleet::PauseKind::kDrain;
}

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
      pause.phase = Resuming();
      return;
  }
}

// Nothing is sent for a drain: the counts say when it holds, and nothing is to be resumed.
void AskFor(Core& core, PauseAsk ask) {
  Pause& pause = core.pause;
  if (IsDrain(pause) || ask == PauseAsk::kNothing) return;
  if (ask == PauseAsk::kPause) {
    auto& pausing = std::get<Pausing>(pause.phase);
    pausing.op = core.NewOp();
    core.effects.push_back(
        PauseEngine{pausing.op, core.boot, pause.wanted.kind, pause.wanted.flush});
    return;
  }
  auto& resuming = std::get<Resuming>(pause.phase);
  resuming.retry_at = core.now + core.config.poll_ms;
  if (!core.answers || core.boot.empty()) return;  // asked when it answers again
  resuming.op = core.NewOp();
  core.effects.push_back(ResumeEngine{resuming.op, core.boot});
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

bool IsWanted(const Core& core) {
  return core.session && core.desired.has_value() && core.desired->pause.has_value() &&
         core.desired->pause->kind != fleet::PauseKind::kNone;
}

void Begin(Core& core, const fleet::DesiredPause& wanted) {
  core.pause.wanted = wanted;
  core.pause.record = PausedRecord{core.boot, wanted.kind};
  core.pause.until = core.now + wanted.deadline_ms;
  Move(core, PauseEvent::kWanted);
}

}  // namespace

void RestorePause(Core& core, const PausedRecord& record) {
  core.pause.record = record;
  core.pause.phase = Resuming();
}

bool IsPaused(const Core& core) { return !std::holds_alternative<None>(core.pause.phase); }
bool IsPauseConfirmed(const Core& core) { return std::holds_alternative<Paused>(core.pause.phase); }

void HandlePauseDone(Core& core, const PauseDone& event) {
  const auto* pausing = std::get_if<Pausing>(&core.pause.phase);
  if (pausing == nullptr || event.op == 0 || pausing->op != event.op) return;
  const bool holds = event.outcome == Outcome::kOk;
  if (!holds) core.pause.spent = true;
  Move(core, holds ? PauseEvent::kHolds : PauseEvent::kFails);
}

void HandleResumeDone(Core& core, const ResumeDone& event) {
  auto* resuming = std::get_if<Resuming>(&core.pause.phase);
  if (resuming == nullptr || event.op == 0 || resuming->op != event.op) return;
  resuming->op = 0;
  if (event.outcome == Outcome::kOk) Move(core, PauseEvent::kResumed);
}

void AdvancePause(Core& core) {
  Pause& pause = core.pause;
  const bool wanted = IsWanted(core);
  if (!wanted) pause.spent = false;
  if (!IsPaused(core)) {
    if (wanted && !pause.spent && core.answers && !core.boot.empty())
      Begin(core, *core.desired->pause);
    return;
  }
  if (!core.boot.empty() && pause.record->boot != core.boot) {
    Move(core, PauseEvent::kBootEnded);
    return;
  }
  if (!std::holds_alternative<Resuming>(pause.phase)) {
    if (core.now >= pause.until) pause.spent = true;
    // Of another kind than it holds: it ends first.
    const bool changed = wanted && core.desired->pause->kind != pause.record->kind;
    if (pause.spent || !wanted || changed) {
      Move(core, PauseEvent::kEnds);
    } else if (IsDrain(pause)) {
      Move(core, core.LiveRequests() == 0 ? PauseEvent::kHolds : PauseEvent::kHoldsNot);
    }
  }
  const auto* resuming = std::get_if<Resuming>(&pause.phase);
  if (resuming == nullptr) return;
  // Asked until the engine says that it goes on; a resume of an engine that runs is harmless. An
  // answer is waited for, however late it is: the driver always gives one.
  if (IsDrain(pause)) {
    Move(core, PauseEvent::kResumed);
  } else if (resuming->op == 0 && core.now >= resuming->retry_at && core.answers) {
    Move(core, PauseEvent::kResumeDue);
  }
}

std::optional<Tick> PauseWakeAt(const Core& core) {
  if (!IsPaused(core)) return std::nullopt;
  const auto* resuming = std::get_if<Resuming>(&core.pause.phase);
  return resuming != nullptr ? resuming->retry_at : core.pause.until;
}

}  // namespace lorry::proxy
