// Frameworks that know nothing of Lorry, at the doors: they pause engines and let them go on, or
// forget to, or do not wait for the answer.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/narrate.h"
#include "tests/sim/sim_proxy.h"

namespace lorry::sim {

using fleet::PauseKind;
using proxy::Outcome;

namespace {

constexpr int64_t kImpatientMs = 3'000;
// A load that is slow or hangs takes a minute, a pause that waits for requests its own deadline.
constexpr int64_t kAnsweredWithinMs = 3 * kFrameworkPauseMs + 120'000;

PauseKind KindOf(const std::string& text, fleet::EngineKind engine) {
  const bool is_second = IsOneIn("second " + text, 330), is_third = IsOneIn("third " + text, 330);
  if (engine == fleet::EngineKind::kSglang)
    return is_second ? PauseKind::kRetract : is_third ? PauseKind::kInPlace : PauseKind::kAbort;
  return is_second ? PauseKind::kWait : is_third ? PauseKind::kKeep : PauseKind::kAbort;
}

}  // namespace

void SimProxy::FrameworkCalls(const std::string& text) {
  if (!alive() || !framework_.open.empty()) return;
  const uint64_t ticket = ++framework_.last;
  const bool is_pause = IsOneIn("pause " + text, 550);
  framework_.open[ticket] = {is_pause, sim_.now()};
  Narrate(sim_, member_.value, is_pause ? "a framework pauses" : "a framework continues");
  if (is_pause) {
    Post(proxy::CallMade{ticket, proxy::PauseCall{KindOf(text, engine_.limits().kind), false}});
  } else {
    framework_.must_hold_until = 0;
    Post(proxy::CallMade{ticket, proxy::ContinueCall{}});
  }
  if (!IsOneIn("leaves " + text, 200)) return;
  sim_.queue.In(sim_.Latency(kImpatientMs), [this, ticket, life = life_] {
    if (life_ == life && alive()) FrameworkLeaves(ticket);
  });
}

// Its pause holds, or may hold, from now on; and on, if the engine sleeps.
void SimProxy::MayHold() {
  framework_.may_hold_until = sim_.now() + kFrameworkPauseMs;
  framework_.sleeps_held = framework_.sleeps;
}

// What it asked for may be done all the same.
void SimProxy::FrameworkLeaves(uint64_t ticket) {
  const auto open = framework_.open.find(ticket);
  if (open == framework_.open.end()) return;
  if (open->second.is_pause) MayHold();
  framework_.open.erase(open);
  Post(proxy::CallLeft{ticket});
}

// 14: nobody is answered twice.
void SimProxy::Do(const proxy::AnswerCall& effect) {
  if (effect.ticket == 0 || effect.ticket > framework_.last)
    sim_.oracle.Violate(14, absl::StrCat(member_.value, " answers a call that nobody made"));
  const auto open = framework_.open.find(effect.ticket);
  if (open == framework_.open.end()) return;  // its caller has left
  const SimFramework::Open call = open->second;
  CheckRefusal(effect.reason, call.at);
  framework_.open.erase(open);
  if (call.is_wake && effect.outcome == Outcome::kOk) {
    framework_.back.insert(call.tags.begin(), call.tags.end());
    framework_.woken = framework_.wakes_all.contains(passed_) && !engine_.asleep();
  }
  // An earlier call, whose answer did not come, took that back.
  const std::string_view told = effect.detail;
  if (const size_t at = told.find(" is not released"); call.is_wake && at != told.npos) {
    for (const std::string& tag : call.tags) {
      if (told.substr(0, at).find(tag) != told.npos) framework_.back.insert(tag);
    }
  }
  if (framework_.back == kMemoryTags) framework_.asleep = BootId();
  // Its remedy for what nobody knows.
  if (absl::StrContains(effect.detail, "start the engine again")) engine_.Kill();
  if (call.is_memory) return;
  if (call.is_pause) {
    if (effect.outcome != Outcome::kOk) return;  // it may have happened, and is ended
    framework_.boot = engine_.boot();
    framework_.must_hold_until = call.at + kFrameworkPauseMs;
    MayHold();
  } else if (effect.outcome == Outcome::kOk) {
    framework_.may_hold_until = std::min(framework_.may_hold_until, sim_.now());
  }
}

void SimProxy::CheckCalls() {
  for (const auto& [ticket, call] : framework_.open) {
    if (alive() && sim_.now() - std::max(call.at, began_at_) > kAnsweredWithinMs)
      sim_.oracle.Violate(14, absl::StrCat(member_.value, " does not answer call ", ticket));
  }
}

// 7: what a framework was told holds until its deadline, or until it lets the engine go on.
void SimProxy::CheckMayGoOn(const BootId& boot) {
  if (framework_.boot != boot || sim_.now() >= framework_.must_hold_until) return;
  sim_.oracle.Violate(
      7, absl::StrCat(member_.value, " lets its engine go on, which a framework paused"));
}

}  // namespace lorry::sim
