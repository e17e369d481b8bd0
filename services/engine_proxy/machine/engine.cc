#include "services/engine_proxy/machine/engine.h"

#include <algorithm>

#include "services/engine_proxy/machine/loading.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/unload.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

// Twice in a row, because one sample may fall between a request's arrival at the door and at the
// engine.
constexpr uint32_t kQuietSamples = 2;

void LeaveEngine(Core& core, const BootId& boot, Residency& residency) {
  // Should the boot have been alive after all, its load or unload may yet happen.
  if (residency.IsAny<at::Loading, at::Doubted, at::Unloading>()) residency.uncertain_on = boot;
  residency.changed_as_of = core.registry.changes;
  residency.evicting = false;
  Move(core, residency, ResidencyEvent::kBootEnded);
}

void EndBoot(Core& core) {
  if (core.boot.empty()) return;
  const BootId boot = core.boot;
  JudgeBoot(core, boot);
  core.boot = BootId();
  core.answers = false;
  core.registry.listing.clear();
  core.registry.listed_as_of = 0;
  core.registry.op = 0;
  core.load_op = 0;
  core.quiet_streak = 0;
  core.load_seen.reset();
  core.hung_loads = 0;
  ++core.registry.changes;
  for (auto& [name, residency] : core.residencies) LeaveEngine(core, boot, residency);
}

void BeginBoot(Core& core, const BootId& boot) {
  core.boot = boot;
  // Requests that an earlier process of this proxy admitted can only be on the boot that it wrote
  // down first.
  core.counts_known = !core.journal_boot.empty() && core.journal_boot != boot;
  if (core.journal_boot != boot) {
    if (!core.journal_boot.empty()) JudgeBoot(core, core.journal_boot);
    core.Save("boot", BootRecord{boot});
  }
  core.journal_boot = boot;
  if (core.wedged.has_value() && core.wedged->boot != boot) {
    core.wedged.reset();
    core.Erase("wedged");
  }
  if (core.unloading.has_value() && core.unloading->boot != boot) {
    core.unloading.reset();
    core.Erase("unloading");
  }
  core.registry.after = core.now;
}

bool WantsList(const Core& core) {
  const Registry& registry = core.registry;
  if (core.now < registry.after) return false;
  if (!registry.IsListed() || !registry.SlotsSettled() || core.now >= registry.due) return true;
  return std::any_of(core.residencies.begin(), core.residencies.end(), [&](const auto& entry) {
    return !core.FreshlyListed(entry.second) && WaitsForList(core, entry.second);
  });
}

// A request that the engine has ended and the door has not would hide one of an earlier process:
// compared is the fewest that the door had, until it must know of every end that the engine knew.
void JudgeQuiet(Core& core) {
  if (!core.load_seen.has_value() || core.now < core.judge_at) return;
  core.quiet_streak = *core.load_seen <= core.live_low ? core.quiet_streak + 1 : 0;
  core.load_seen.reset();
  if (core.quiet_streak >= kQuietSamples) core.counts_known = true;
}

}  // namespace

void HandleSeen(Core& core, const EngineSeen& event) {
  if (event.boot != core.boot) {
    EndBoot(core);
    BeginBoot(core, event.boot);
  } else {
    JudgeDoubts(core);
  }
  core.answers = true;
  core.asleep = event.asleep;
  core.limits = event.limits;
  core.engine_version = event.version;
  core.problem = event.problem;
  core.warning = event.warning;
  core.base_unchecked = event.base_unchecked;
  if (core.base_model == event.base_model) return;
  core.base_model = event.base_model;
  ++core.base_count;
}

void HandleLost(Core& core, const EngineLost& event) {
  core.answers = false;
  core.lost_why = event.why;
  if (event.ended) EndBoot(core);
}

void HandleListed(Core& core, const Listed& event) {
  Registry& registry = core.registry;
  if (event.op == 0 || event.op != registry.op) return;
  registry.op = 0;
  if (event.outcome != Outcome::kOk) {
    registry.after = core.now + core.config.poll_ms;
    return;
  }
  registry.listing = event.paths;
  registry.listed_as_of = registry.asked_as_of;
  registry.due = core.now + core.config.list_ms;
  AdoptListing(core);
}

void HandleEngineLoad(Core& core, const EngineLoadSeen& event) {
  if (event.op == 0 || event.op != core.load_op) return;
  core.load_op = 0;
  const bool answered = event.outcome == Outcome::kOk;
  core.quiet = answered && event.running_and_waiting <= core.LiveRequests();
  // A good answer lets one name go; for the next one the engine is asked as soon as that is done.
  core.load_due = core.quiet && core.counts_known ? core.now : core.now + core.config.poll_ms;
  if (!answered) core.quiet_streak = 0;
  if (!answered || core.counts_known) return;
  core.load_seen = event.running_and_waiting;
  core.judge_at = core.now + core.config.door_lag_ms;
}

void AdvanceEngine(Core& core) {
  if (core.boot.empty() || !core.answers) return;
  JudgeQuiet(core);
  if (core.registry.op == 0 && WantsList(core)) {
    core.registry.op = core.NewOp();
    core.registry.asked_as_of = ++core.registry.changes;
    core.effects.push_back(List{core.registry.op, core.boot});
  }
  const bool asks = !core.counts_known || WaitsForQuiet(core);
  if (core.load_op == 0 && asks && core.now >= core.load_due) {
    core.load_op = core.NewOp();
    core.live_low = core.LiveRequests();
    core.effects.push_back(AskEngineLoad{core.load_op, core.boot});
  }
}

}  // namespace lorry::proxy
