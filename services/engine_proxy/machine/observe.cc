#include "services/engine_proxy/machine/observe.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/engine_proxy/machine/demand.h"
#include "services/engine_proxy/machine/memory.h"
#include "services/engine_proxy/machine/pauses.h"
#include "services/engine_proxy/machine/quiesce.h"
#include "services/engine_proxy/machine/residency.h"
#include "services/engine_proxy/machine/rows.h"
#include "services/engine_proxy/machine/verdicts.h"

namespace lorry::proxy {
namespace {

fleet::MemberHealth HealthOf(const Core& core) {
  // An engine that does not answer serves nobody, whatever it has loaded.
  if (core.boot.empty() || !core.answers || core.problem.has_value() || !core.registry.IsListed())
    return fleet::MemberHealth::kJoining;
  // Also while it sleeps: it cannot take its memory back before it is started again.
  if (core.IsWedged()) return fleet::MemberHealth::kWedged;
  // Nor can it load anything once its door is shut for a framework's call: no sync waits for it.
  const bool rests = IsAsleepOrToBe(core) || IsUpdatingOrTo(core);
  return rests ? fleet::MemberHealth::kAsleep : fleet::MemberHealth::kReady;
}

std::string HealthDetail(const Core& core) {
  if (std::string trouble = EngineTrouble(core); !trouble.empty()) return trouble;
  if (std::string detail = RestDetail(core); !detail.empty()) return detail;
  if (IsResuming(core)) {
    return "resuming: a pause is over, and the engine has not said yet that it goes on";
  }
  if (core.pause.by_framework) {
    return absl::StrCat(
        "a framework paused the engine: no version is loaded or probed until it lets the engine go "
        "on, which the proxy does after ",
        core.config.framework_pause_ms / 1'000, " s");
  }
  if (core.pause.was_overdue) {
    return absl::StrCat("the proxy ended a framework's pause after ",
                        core.config.framework_pause_ms / 1'000,
                        " s, in which the framework did not let the engine go on");
  }
  return core.warning;
}

fleet::ResidencyState ToldStateOf(const Residency& residency) {
  using fleet::ResidencyState;
  switch (StateOf(residency)) {
    case proxy::ResidencyState::kAbsent:
      // Between two tries of a fetch it counts as FETCHING, and why the last one ended is told with
      // that.
      return std::get<at::Absent>(residency.phase).put_off.has_value() ? ResidencyState::kFetching
                                                                       : ResidencyState::kAbsent;
    case proxy::ResidencyState::kFetching:
    case proxy::ResidencyState::kCancelling:
      return ResidencyState::kFetching;
    case proxy::ResidencyState::kFetched:
    case proxy::ResidencyState::kHashing:
    case proxy::ResidencyState::kChecking:
    case proxy::ResidencyState::kDeleting:
      return ResidencyState::kFetched;
    case proxy::ResidencyState::kLoading:
    case proxy::ResidencyState::kVerifying:
    case proxy::ResidencyState::kProbing:
    case proxy::ResidencyState::kDoubted:
      return ResidencyState::kLoading;
    case proxy::ResidencyState::kLoaded:
      return ResidencyState::kLoaded;
    case proxy::ResidencyState::kUnloading:
      return ResidencyState::kUnloading;
    case proxy::ResidencyState::kFailed:
      return ResidencyState::kFailed;
  }
  return ResidencyState::kAbsent;
}

fleet::ResidencyState ToldState(const Core& core, const Residency& residency) {
  const fleet::ResidencyState state = ToldStateOf(residency);
  // The engine may still die of a load without an answer, wanted or not. The orchestrator must know
  // that before it lets others try the version. Of one that is FAILED it knows: that one hung.
  const bool is_left = IsLeftOnTrial(core, residency) && !residency.Is<at::Failed>();
  if (is_left || state == fleet::ResidencyState::kLoading) return fleet::ResidencyState::kLoading;
  // What the engine has and nobody wants counts as UNLOADING, as it holds a slot.
  const bool is_there = !residency.Is<at::Loaded>() && !core.IsWanted(residency) &&
                        !MaySurvive(core, residency) && core.IsListed(residency);
  return is_there ? fleet::ResidencyState::kUnloading : state;
}

// Why a residency is in the state that is reported of it.
struct Why {
  fleet::Failure failure = fleet::Failure::kNone;
  bool no_slot = false;
  std::string_view reason;
  std::string detail;
};
Why WhyOf(const Core& core, const Residency& residency, fleet::ResidencyState told) {
  const auto* absent = std::get_if<at::Absent>(&residency.phase);
  const auto* fetching = std::get_if<at::Fetching>(&residency.phase);
  const auto* fetched = std::get_if<at::Fetched>(&residency.phase);
  const auto* failed = std::get_if<at::Failed>(&residency.phase);
  const auto* loaded = std::get_if<at::Loaded>(&residency.phase);
  if (loaded != nullptr) return {.reason = loaded->reason, .detail = loaded->detail};
  if (failed != nullptr && told == fleet::ResidencyState::kFailed)
    return {failed->mishap.failure, false, failed->mishap.reason, failed->mishap.detail};
  const bool is_put_off = absent != nullptr && absent->put_off.has_value();
  if (is_put_off && told == fleet::ResidencyState::kFetching)
    return {.reason = absent->put_off->reason, .detail = absent->put_off->detail};
  if (fetching != nullptr && !fetching->waits_for.empty())
    return {.reason = "FOLLOWER_FETCHES", .detail = fetching->waits_for};
  const bool has_no_slot = fetched != nullptr && fetched->no_slot.has_value();
  if (has_no_slot && told == fleet::ResidencyState::kFetched)
    return {.no_slot = true, .reason = "NO_SLOT", .detail = *fetched->no_slot};
  if (IsPutOff(core, residency) && told == fleet::ResidencyState::kFetched)
    return {.reason = fetched->put_off->reason, .detail = fetched->put_off->detail};
  if (told == fleet::ResidencyState::kFetched && core.IsWanted(residency)) {
    std::string why = WhyUnservable(core, residency);
    if (!why.empty()) return {.reason = "ADAPTER_UNSERVABLE", .detail = std::move(why)};
  }
  return {};
}

std::optional<fleet::ObservedGap> GapOf(const Residency& residency) {
  const auto* loaded = std::get_if<at::Loaded>(&residency.phase);
  return loaded == nullptr ? std::nullopt : loaded->gap;
}

fleet::ObservedResidency ResidencyOf(const Core& core, const Residency& residency) {
  fleet::ObservedResidency out;
  out.name = residency.name;
  out.key = residency.key;
  out.state = ToldState(core, residency);
  const Why why = WhyOf(core, residency, out.state);
  out.failure = why.failure;
  out.no_slot = why.no_slot;
  out.reason = why.reason;
  out.detail = why.detail;
  out.gap = GapOf(residency);
  if (const auto* fetching = std::get_if<at::Fetching>(&residency.phase)) {
    out.bytes_done = fetching->bytes_done;
    out.bytes_total = fetching->bytes_total;
  }
  out.in_flight = core.InFlight(residency.name);
  out.count_known = !residency.uncounted.has_value();
  return out;
}

// The epoch of the sync for which the row admits nothing. A CLOSED row admits nothing anyway, and
// so answers a request to hold or to lock at once.
Epoch BarrierOf(const fleet::DesiredRow* wanted, const Row& row, fleet::RowMode reported) {
  using fleet::RowMode;
  if (reported == RowMode::kHeld) return HeldEpoch(row);
  if (reported == RowMode::kLocked) return row.record.locked;
  const bool asked = reported == RowMode::kClosed && wanted != nullptr &&
                     (wanted->mode == RowMode::kHeld || wanted->mode == RowMode::kLocked);
  return asked ? wanted->epoch : Epoch();
}

fleet::ObservedRow RowOf(const Core& core, const AdapterName& adapter, const Row& row) {
  const fleet::DesiredRow* wanted = core.WantedRow(adapter);
  fleet::ObservedRow out;
  out.adapter = adapter;
  out.mode = ReportedModeOf(core, row);
  // If the orchestrator loses its records, it learns from this what was decided.
  out.incarnation = row.record.incarnation;
  out.epoch = row.record.epoch;
  if (row.record.open) out.target = row.record.target;
  out.barrier = BarrierOf(wanted, row, out.mode);
  out.revoked = row.revoked;
  if (wanted != nullptr) out.waits_for = WhatRestWaitsFor(core, *wanted, row);
  return out;
}

// Whether the residencies as they were sent differ from what they are now in numbers alone.
bool OnlyCountsDiffer(const Core& core, const std::vector<fleet::ObservedResidency>& sent) {
  auto said = sent.begin();
  for (const auto& [name, residency] : core.residencies) {
    const fleet::ResidencyState state = ToldState(core, residency);
    if (state == fleet::ResidencyState::kAbsent) continue;
    if (said == sent.end() || said->state != state ||
        said->count_known == residency.uncounted.has_value() ||
        (said->in_flight > 0) != (core.InFlight(name) > 0) || said->name != name ||
        said->key != residency.key || said->gap != GapOf(residency)) {
      return false;
    }
    const Why why = WhyOf(core, residency, state);
    if (said->failure != why.failure || said->reason != why.reason || said->detail != why.detail)
      return false;
    ++said;
  }
  return said == sent.end();
}

Revision RevisionOf(const Core& core) {
  return core.desired.has_value() ? core.desired->revision : Revision();
}

std::optional<fleet::DesiredPause> PausedOf(const Core& core) {
  return IsPaused(core) ? std::optional(core.pause.wanted) : std::nullopt;
}

fleet::Observed WithoutResidencies(const Core& core) {
  fleet::Observed observed;
  observed.journal = core.journal.journal;
  observed.sequence = core.sequence;
  observed.boot = core.boot;
  observed.term = core.term;
  observed.revision = RevisionOf(core);
  observed.health = HealthOf(core);
  observed.health_detail = HealthDetail(core);
  observed.limits = core.limits;
  observed.engine_version = core.engine_version;
  observed.base_model = core.base_model;
  for (const auto& [adapter, row] : core.rows) observed.rows.push_back(RowOf(core, adapter, row));
  observed.paused = PausedOf(core);
  for (const auto& [name, killer] : core.killers) observed.killers.push_back({name, killer.deaths});
  observed.leaves = core.leaves;
  return observed;
}

bool AreRowsSaid(const Core& core, const std::vector<fleet::ObservedRow>& sent) {
  return std::ranges::equal(core.rows, sent, [&](const auto& entry, const auto& said) {
    return RowOf(core, entry.first, entry.second) == said;
  });
}

bool AreKillersSaid(const Core& core, const std::vector<fleet::Killer>& sent) {
  return std::ranges::equal(core.killers, sent, [](const auto& entry, const auto& said) {
    return entry.first == said.name && entry.second.deaths == said.deaths;
  });
}

// Whether nothing but numbers of residencies has changed since the last document. After each event:
// so the document is not made for it.
bool IsSaid(const Core& core) {
  const fleet::Observed& sent = core.sent;
  return core.term == sent.term && RevisionOf(core) == sent.revision &&
         HealthOf(core) == sent.health && core.leaves == sent.leaves &&
         PausedOf(core) == sent.paused && core.boot == sent.boot &&
         core.journal.journal == sent.journal && core.limits == sent.limits &&
         core.engine_version == sent.engine_version && core.base_model == sent.base_model &&
         HealthDetail(core) == sent.health_detail && AreRowsSaid(core, sent.rows) &&
         AreKillersSaid(core, sent.killers) && OnlyCountsDiffer(core, sent.residencies);
}

}  // namespace

std::string EngineTrouble(const Core& core) {
  if (core.problem.has_value()) return *core.problem;
  if (core.boot.empty()) return core.lost_why.empty() ? "waits for the engine" : core.lost_why;
  if (!core.answers) return absl::StrCat("the engine does not answer: ", core.lost_why);
  if (!core.registry.IsListed()) return "waits for the engine's list of adapters";
  if (core.IsWedged()) {
    return absl::StrCat("the registry hangs since ", core.wedged->name.value, "; the engine ",
                        core.asleep ? "cannot take its memory back" : "serves what it has",
                        " and needs a restart");
  }
  return "";
}

fleet::Observed Observe(const Core& core) {
  fleet::Observed observed = WithoutResidencies(core);
  observed.residencies.reserve(core.residencies.size());
  for (const auto& [name, residency] : core.residencies) {
    if (ToldState(core, residency) == fleet::ResidencyState::kAbsent) continue;
    observed.residencies.push_back(ResidencyOf(core, residency));
  }
  return observed;
}

void AdvanceObserved(Core& core) {
  // Without a session it is for the next one's Hello, which nobody may take for newer than it is.
  const bool due = core.session && core.now - core.sent_at >= core.config.observed_ms;
  if (!due && IsSaid(core)) return;
  fleet::Observed observed = Observe(core);
  observed.sequence = ++core.sequence;
  core.sent = observed;
  core.sent_at = core.now;
  core.effects.push_back(SendObserved{std::move(observed)});
}

std::string Describe(const Core& core) {
  const fleet::Observed observed = Observe(core);
  std::string line =
      absl::StrCat("boot=", core.boot.value.empty() ? "-" : core.boot.value, " ",
                   std::string(fleet::ToString(observed.health)), core.session ? "" : " no-session",
                   " term=", ToString(core.term), " rev=", observed.revision.value);
  for (const fleet::ObservedRow& row : observed.rows) {
    absl::StrAppend(&line, " ", row.adapter.value, ":", std::string(fleet::ToString(row.mode)), "(",
                    row.epoch.value, ")", row.target.empty() ? "" : "=", row.target.value);
    if (!row.waits_for.empty()) absl::StrAppend(&line, " waits for ", row.waits_for);
  }
  for (const fleet::ObservedResidency& residency : observed.residencies) {
    absl::StrAppend(
        &line, " [", residency.name.value, " ", std::string(fleet::ToString(residency.state)),
        residency.reason.empty() ? "" : " ", residency.reason,
        residency.in_flight > 0 ? " busy" : "", residency.count_known ? "" : " count?", "]");
  }
  return line;
}

}  // namespace lorry::proxy
