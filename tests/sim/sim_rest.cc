// Pauses of a simulated engine, and whether it is at rest where policy asks for that.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {

using fleet::PauseKind;
using proxy::Outcome;

namespace {

// A call whose answer is lost may be done so much later, within what a machine allows for.
constexpr int64_t kLateMs = 800;
constexpr int64_t kAskAgainMs = 50;

}  // namespace

// --- the engine

void SimEngine::Pause(PauseKind kind) {
  if (!up_) return;
  has_aborted_ = kind == PauseKind::kAbort || (paused_since_.has_value() && has_aborted_);
  if (paused_since_.has_value()) return;
  Narrate(sim_, id_, "engine is paused");
  paused_since_ = sim_.now();
  // What waits for its requests goes on with them; what aborted them has none.
  is_frozen_ = kind != PauseKind::kWait;
}

void SimEngine::Resume() {
  if (!up_ || !paused_since_.has_value()) return;
  Narrate(sim_, id_, "engine goes on");
  paused_since_.reset();
  is_frozen_ = false;
}

// --- its proxy

void SimProxy::Do(const proxy::PauseEngine& effect) {
  if (!Reaches(effect.boot)) return Later(5, proxy::PauseDone{effect.op, Outcome::kUnknown});
  if (!sim_.Chance(sim_.faults.answer_lost)) return Pause(effect, sim_.now() + effect.deadline_ms);
  // Nobody hears of it, and some of these happen after what was asked for later; none happens once its
  // journal is lost, as nobody could know.
  sim_.queue.In(sim_.Latency(kLateMs),
                [this, boot = effect.boot, kind = effect.kind, journal = journals_] {
                  const bool is_known = journals_ == journal && !journal_.empty();
                  if (engine_.up() && engine_.boot() == boot && is_known) PauseNow(kind);
                });
  Later(5, proxy::PauseDone{effect.op, Outcome::kUnknown, "ENGINE_TIMEOUT"});
}

void SimProxy::PauseNow(PauseKind kind) {
  engine_.Pause(kind);
  if (kind != PauseKind::kAbort) return;
  for (const auto& door : doors_) door->AbortAll();
}

void SimProxy::Pause(const proxy::PauseEngine& effect, Tick until) {
  if (sim_.plant != Plant::kPauseIsIgnored) PauseNow(effect.kind);
  Confirm(effect, until);
}

// One that waits for requests is answered when they have ended.
void SimProxy::Confirm(const proxy::PauseEngine& effect, Tick until) {
  const bool is_over = engine_.boot() != effect.boot || !engine_.up() || sim_.now() >= until;
  if (is_over) return Later(5, proxy::PauseDone{effect.op, Outcome::kUnknown, "ENGINE_TIMEOUT"});
  if (effect.kind != PauseKind::kWait || engine_.IsIdle())
    return Later(5, proxy::PauseDone{effect.op, Outcome::kOk});
  sim_.queue.In(kAskAgainMs, [this, effect, until] { Confirm(effect, until); });
}

void SimProxy::Do(const proxy::ResumeEngine& effect) {
  CheckMayGoOn(effect.boot);
  const bool lost = !Reaches(effect.boot) || sim_.Chance(sim_.faults.answer_lost);
  if (!lost && sim_.plant != Plant::kResumeIsIgnored) engine_.Resume();
  Later(5, proxy::ResumeDone{effect.op, lost ? Outcome::kUnknown : Outcome::kOk});
}

// A framework's pause lasts on through a sleep, and its time begins anew then, whoever put the engine
// to sleep.
void SimProxy::NotePauseWaits() {
  const bool sleeps = machine().door_table().asleep;
  if (std::exchange(framework_.sleeps, sleeps) == sleeps) return;
  if (sleeps) {
    framework_.sleeps_held = sim_.now() <= framework_.may_hold_until;
  } else if (framework_.sleeps_held) {
    framework_.may_hold_until = sim_.now() + kFrameworkPauseMs;
  }
}

// 7: within the longest that a policy here allows.
void SimProxy::CheckPause() {
  // A resume whose answer is lost is sent again each second; a full disk keeps everything waiting.
  const bool is_slow = sim_.faults.answer_lost > 0 || sim_.faults.disk_full > 0;
  const int64_t slack_ms = (is_slow ? 15'000 : 3'000) + (sim_.faults.disk_slow > 0 ? 6'000 : 0);
  if (!alive() || !engine_.paused_since().has_value()) return;
  if (framework_.sleeps && framework_.sleeps_held) return;
  const Tick since =
      std::max({began_at_, blind_until_, *engine_.paused_since(), framework_.may_hold_until});
  // A framework waits for its answer: it may be paused for that.
  const bool is_asked =
      std::ranges::any_of(framework_.open, [](const auto& call) { return call.second.is_pause; });
  if (is_asked && sim_.now() - *engine_.paused_since() < 2 * kFrameworkPauseMs) return;
  if (sim_.now() - since > kBarrierDeadlineMostMs + sim_.drain_deadline_most_ms + slack_ms)
    sim_.oracle.Violate(7, absl::StrCat(member_.value, " leaves its engine paused"));
}

void SimProxy::NoteRows() {
  for (const proxy::DoorRow& row : machine().door_table().rows) {
    SimRow& its = door_rows_[row.adapter];
    const bool is_shut = row.mode != fleet::RowMode::kOpen;
    if (is_shut && !its.is_shut) its.shut_at = sim_.now();
    its.is_shut = is_shut;
  }
}

void SimProxy::NoteHolds(const fleet::Desired& desired) {
  for (const fleet::DesiredRow& row : desired.rows) {
    SimRow& its = door_rows_[row.adapter];
    its.hold_for_ms = its.is_shut ? std::min(its.hold_for_ms, row.hold_for_ms) : row.hold_for_ms;
  }
}

// 5: where every document that may have led to it asks for rest, a row is LOCKED, or goes from one
// version to another, only while its engine is paused or no request of `latest` is left of the old
// one. A row that goes on after a decision does so at the hold's deadline in any case.
void SimProxy::CheckRest(const proxy::Record& record) {
  const auto* row =
      record.value.has_value() ? std::get_if<proxy::RowRecord>(&*record.value) : nullptr;
  const auto before = journal_.find(record.key);
  if (row == nullptr || before == journal_.end() || !Reaches(engine_.boot())) return;
  const auto& old = std::get<proxy::RowRecord>(before->second);
  const AdapterName adapter(record.key.substr(record.key.rfind('/') + 1));
  const bool locks = row->locked.value != 0 && row->locked != old.locked;
  const SimRow door_row = door_rows_[adapter];
  const bool was_serving =
      door_row.mode == fleet::RowMode::kOpen || door_row.mode == fleet::RowMode::kHeld;
  const bool flips =
      row->open && old.open && row->target != old.target && was_serving && old.locked.value == 0;
  // What the engine has not any more is left behind already.
  if (!old.open || (!locks && !flips) || !engine_.Lists(old.target)) return;
  const bool must_rest = AlwaysSaid([&](const fleet::Desired& desired) {
    const auto wanted = std::ranges::find(desired.rows, adapter, &fleet::DesiredRow::adapter);
    return wanted != desired.rows.end() && wanted->quiesce.kind != PauseKind::kNone;
  });
  if (!must_rest || engine_.paused_since().has_value()) return;
  const bool has_held_enough = flips && sim_.now() - door_row.shut_at >= door_row.hold_for_ms;
  const uint32_t running = doors_.back()->RunningOnLatest(old.target);
  if (running == 0 || has_held_enough) return;
  sim_.oracle.Violate(5, absl::StrCat(member_.value, locks ? " locks " : " flips ", adapter.value,
                                      " while ", running, " requests run on ", old.target.value));
}

}  // namespace lorry::sim
