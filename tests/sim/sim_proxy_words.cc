// Whether what a simulated proxy says of itself, and what its door resolves by, is what is so.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "lib/base/strings.h"
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {
namespace {

bool SpeaksOfRest(const std::string& detail) {
  return absl::StartsWith(detail, "asleep") || absl::StartsWith(detail, "updating");
}

// Under its own pause a framework gives an engine that is READY other weights.
bool MayBeReady(const std::string& detail) {
  return !SpeaksOfRest(detail) || absl::StartsWith(detail, "updating: ");
}

// Of the engine, and why it is not READY.
std::string WhyHealthIsNot(const fleet::Observed& said, const SimEngine& engine) {
  const bool rests = said.health == fleet::MemberHealth::kAsleep;
  const bool is_ready = said.health == fleet::MemberHealth::kReady;
  if (!is_ready && said.health_detail.empty()) return "not why it is not READY";
  if (rests ? !SpeaksOfRest(said.health_detail) : is_ready && !MayBeReady(said.health_detail))
    return "of its rest: " + said.health_detail;
  if (said.boot.empty() || said.boot != engine.boot()) return "";
  if (said.limits != engine.limits() || said.base_model != engine.base_model())
    return "of another engine";
  return "";
}

std::string WhyResidencyIsNot(const fleet::ObservedResidency& said, uint32_t slots) {
  const bool has_failed = said.state == fleet::ResidencyState::kFailed;
  if (has_failed != (said.failure != fleet::Failure::kNone)) return "whose failure it is";
  if (has_failed && said.reason.empty()) return "not why it failed";
  if (said.no_slot != (said.reason == "NO_SLOT")) return "of slots";
  if (said.no_slot && (slots == 0 || said.state != fleet::ResidencyState::kFetched))
    return "that it has no slot";
  if (!said.reason.empty() && said.state == fleet::ResidencyState::kAbsent) return said.reason;
  return "";
}

}  // namespace

std::string SimProxy::WhyNotSo() const {
  if (!driver_.IsAtRest()) return "";
  const fleet::Observed said = machine().Observe();
  if (std::string why = WhyHealthIsNot(said, engine_); !why.empty()) return why;
  for (const fleet::ObservedResidency& residency : said.residencies) {
    const std::string why = WhyResidencyIsNot(residency, said.limits.slots);
    if (!why.empty()) return absl::StrCat(why, ", of ", residency.name.value);
  }
  return WhyTableIsNot(said, machine().door_table());
}

std::string SimProxy::WhyTableIsNot(const fleet::Observed& said,
                                    const proxy::DoorTable& table) const {
  if (table.boot != said.boot || table.slots != said.limits.slots) return "another engine's table";
  if (table.awaits_desired != (known_ == nullptr)) return "whether it was told what to serve";
  if (known_ != nullptr && (table.aliases != known_->aliases || table.rules != known_->rules))
    return "other aliases and rules than it was told";
  const bool same_rows = std::ranges::equal(table.rows, said.rows, {}, &proxy::DoorRow::adapter,
                                            &fleet::ObservedRow::adapter);
  if (!same_rows) return "other rows than its door has";
  for (const proxy::DoorRoute& route : table.routes) {
    const auto its =
        std::ranges::find(said.residencies, route.name, &fleet::ObservedResidency::name);
    if (its == said.residencies.end() || its->state != fleet::ResidencyState::kLoaded)
      return "a route to " + route.name.value + ", which is not loaded";
  }
  if (known_ == nullptr) return "";
  for (const fleet::WantedVersion& wanted : known_->wanted) {
    const auto its =
        std::ranges::find(said.residencies, wanted.name, &fleet::ObservedResidency::name);
    const proxy::DoorRoute* route = table.FindRoute(wanted.name);
    const bool is_loaded =
        its != said.residencies.end() && its->state == fleet::ResidencyState::kLoaded;
    if (is_loaded && wanted.must && route == nullptr) return "no route to " + wanted.name.value;
    if (route != nullptr && route->lag != wanted.lag)
      return "that " + wanted.name.value + " is not as far behind as it is";
  }
  for (const fleet::DesiredRow& wanted : known_->rows) {
    const proxy::DoorRow* row = table.FindRow(wanted.adapter);
    const auto its = std::ranges::find(said.rows, wanted.adapter, &fleet::ObservedRow::adapter);
    if (row == nullptr || row->mode != fleet::RowMode::kOpen) continue;
    const bool is_behind = wanted.mode == fleet::RowMode::kOpen && wanted.epoch > its->epoch;
    if (row->behind != is_behind)
      return "whether its row of " + wanted.adapter.value + " is behind";
  }
  return "";
}

// What a framework is refused for.
void SimProxy::CheckRefusal(const std::string& reason, Tick asked_at) {
  constexpr int64_t kBusyMs = 60'000;  // that requests are waited for
  constexpr int64_t kSlackMs = 15'000;
  const auto violate = [&](std::string_view why) {
    sim_.oracle.Violate(14, absl::StrCat(member_.value, " refuses a framework's call: ", reason,
                                         ", ", ToAbsl(why)));
  };
  if (reason == "ENGINE_BUSY" && sim_.now() - asked_at < kBusyMs) violate("and has not waited");
  const bool is_sglang = engine_.limits().kind == fleet::EngineKind::kSglang;
  if (reason == "MEMORY_CONFLICT" && !is_sglang) violate("of which this engine does not die");
  if (reason == "PAUSE_CONFLICT" && sim_.now() > framework_.may_hold_until + kSlackMs)
    violate("and nobody has paused it");
}

}  // namespace lorry::sim
