#include "services/engine_proxy/machine/engine.h"

#include <algorithm>

#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/unload.h"

namespace lorry::proxy {
namespace {

// Twice in a row, because one sample may fall between a request's arrival at the door and at the
// engine.
constexpr uint32_t kQuietSamples = 2;

void CountDeath(Core& core, Residency& residency) {
  KillerRecord& killer = core.killers[residency.name];
  ++killer.deaths;
  core.Save(KillerKey(residency.name), killer);
  if (core.killers.size() > kKillersLimit) {
    for (auto it = core.killers.begin(); it != core.killers.end(); ++it) {
      if (core.residencies.contains(it->first)) continue;
      core.Erase(KillerKey(it->first));
      core.killers.erase(it);
      break;
    }
  }
  if (killer.deaths < core.config.deaths_limit) return;
  residency.blocked = true;
  residency.state = fleet::ResidencyState::kFailed;
  residency.failure = fleet::Failure::kEngineDied;
  residency.reason = "ENGINE_DIED";
}

void LeaveEngine(Core& core, Residency& residency) {
  const bool was_trying = residency.doing == Doing::kLoading ||
                          residency.doing == Doing::kVerifying ||
                          residency.doing == Doing::kProbing;
  const bool on_engine = was_trying || residency.doing == Doing::kUnloading ||
                         residency.state == fleet::ResidencyState::kLoaded;
  residency.changed = core.registry;
  residency.evicting = false;
  if (!on_engine) return;
  residency.doing = Doing::kNothing;
  residency.op = 0;
  residency.state =
      residency.path.empty() ? fleet::ResidencyState::kAbsent : fleet::ResidencyState::kFetched;
  if (was_trying) CountDeath(core, residency);
}

void EndBoot(Core& core) {
  if (core.boot.empty()) return;
  core.boot = BootId();
  core.answers = false;
  core.listing.clear();
  core.listing_at = 0;
  core.list_op = 0;
  core.load_op = 0;
  core.quiet_streak = 0;
  core.load_seen.reset();
  core.hung_loads = 0;
  ++core.registry;
  for (auto& [name, residency] : core.residencies) LeaveEngine(core, residency);
  std::erase_if(core.residencies, [](const auto& entry) {
    return entry.second.state == fleet::ResidencyState::kAbsent &&
           entry.second.doing == Doing::kNothing;
  });
  core.met = false;
}

void BeginBoot(Core& core, const BootId& boot) {
  core.boot = boot;
  // Requests that an earlier process of this proxy admitted can only be on the boot that it wrote
  // down first.
  core.counts_known = !core.journal_boot.empty() && core.journal_boot != boot;
  if (core.journal_boot != boot) core.Save("boot", BootRecord{boot});
  core.journal_boot = boot;
  if (core.wedged.has_value() && core.wedged->boot != boot) {
    core.wedged.reset();
    core.Erase("wedged");
  }
  core.list_after = core.now;
}

bool WantsList(const Core& core) {
  if (core.now < core.list_after) return false;
  if (core.listing_at == 0 || !core.SlotsListed() || core.now >= core.list_due) return true;
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
  if (event.op == 0 || event.op != core.list_op) return;
  core.list_op = 0;
  if (event.outcome != Outcome::kOk) {
    core.list_after = core.now + core.config.poll_ms;
    return;
  }
  if (core.listing != event.paths) core.listing = event.paths;
  core.listing_at = core.list_asked_at;
  core.list_due = core.now + core.config.list_ms;
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
  if (core.list_op == 0 && WantsList(core)) {
    core.list_op = core.NewOp();
    core.list_asked_at = ++core.registry;
    core.effects.push_back(List{core.list_op, core.boot});
  }
  const bool asks = !core.counts_known || WaitsForQuiet(core);
  if (core.load_op == 0 && asks && core.now >= core.load_due) {
    core.load_op = core.NewOp();
    core.live_low = core.LiveRequests();
    core.effects.push_back(AskEngineLoad{core.load_op, core.boot});
  }
}

}  // namespace lorry::proxy
