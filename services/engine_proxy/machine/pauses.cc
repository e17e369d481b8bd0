#include "services/engine_proxy/machine/pauses.h"

namespace lorry::proxy {
namespace {

void Forget(Core& core) {
  core.pause.record.reset();
  core.pause.op = 0;
  core.pause.confirmed = core.pause.ending = false;
  core.Erase("paused");
}

void Begin(Core& core, const fleet::DesiredPause& wanted) {
  Pause& pause = core.pause;
  pause.wanted = wanted;
  pause.record = PausedRecord{core.boot, wanted.kind};
  pause.until = core.now + wanted.deadline_ms;
  pause.confirmed = pause.ending = false;
  core.Save("paused", *pause.record);
  if (wanted.kind == fleet::PauseKind::kDrain)
    return;  // nothing is sent: the counts say when it is drained
  pause.op = core.NewOp();
  core.effects.push_back(PauseEngine{pause.op, core.boot, wanted.kind, wanted.flush});
}

// Asked until the engine says it goes on; a resume of an engine that runs is harmless.
void End(Core& core) {
  Pause& pause = core.pause;
  pause.ending = true;
  pause.confirmed = false;
  if (pause.record->kind == fleet::PauseKind::kDrain) return Forget(core);
  if (!core.answers || core.now < pause.retry_at) return;
  pause.retry_at = core.now + core.config.poll_ms;
  pause.op = core.NewOp();
  core.effects.push_back(ResumeEngine{pause.op, core.boot});
}

}  // namespace

void HandlePauseDone(Core& core, const PauseDone& event) {
  if (event.op != core.pause.op || core.pause.ending || !core.pause.record.has_value()) return;
  core.pause.op = 0;
  core.pause.confirmed = event.outcome == Outcome::kOk;
  if (event.outcome != Outcome::kOk) core.pause.ending = core.pause.spent = true;
}

void HandleResumeDone(Core& core, const ResumeDone& event) {
  if (event.op != core.pause.op || !core.pause.ending || !core.pause.record.has_value()) return;
  if (event.outcome == Outcome::kOk) Forget(core);
}

void AdvancePause(Core& core) {
  Pause& pause = core.pause;
  const bool wanted = core.session && core.desired.has_value() && core.desired->pause.has_value() &&
                      core.desired->pause->kind != fleet::PauseKind::kNone;
  if (!wanted) pause.spent = false;
  if (!pause.record.has_value()) {
    if (wanted && !pause.spent && core.answers && !core.boot.empty())
      Begin(core, *core.desired->pause);
    return;
  }
  if (!core.boot.empty() && pause.record->boot != core.boot)
    return Forget(core);  // another life, not paused
  if (core.now >= pause.until) pause.spent = true;
  if (pause.ending || pause.spent || !wanted) return End(core);
  if (pause.record->kind == fleet::PauseKind::kDrain) pause.confirmed = core.LiveRequests() == 0;
}

std::optional<Tick> PauseWakeAt(const Core& core) {
  if (!core.pause.record.has_value()) return std::nullopt;
  return core.pause.ending ? core.pause.retry_at : core.pause.until;
}

}  // namespace lorry::proxy
