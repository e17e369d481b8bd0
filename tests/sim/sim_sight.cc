// What a proxy sees of its engine, and when it hears of it.
#include <algorithm>

#include "tests/sim/sim_proxy.h"

namespace lorry::sim {

namespace {

constexpr int64_t kLookEveryMs = 1'000;  // the driver's own
constexpr int64_t kLookTakesMs = 500;

}  // namespace

void SimProxy::EngineChanged() {
  sim_.queue.In(sim_.Latency(kLookEveryMs), [this, life = life_] {
    if (life_ == life && alive()) LookNow();
  });
}

void SimProxy::LookNow() {
  if (sim_.now() < blind_until_) return;
  if (!engine_.up()) {
    seen_boot_ = BootId();
    return Post(proxy::EngineLost{true});
  }
  // A planted bug: restarts of the engine go unnoticed.
  if (sim_.plant == Plant::kBootIsHidden && !seen_boot_.empty()) return;
  seen_boot_ = engine_.boot();
  Told(Look());
}

// The driver looks every second, and tells of it also where nothing has changed. That ends the doubt
// about an engine whose connection broke, so here it begins with the first of them in this life.
void SimProxy::BrokeOff(const BootId& boot) {
  const bool lives = engine_.up() && engine_.boot() == boot;
  if (!lives || looks_on_in_ == life_) return;
  looks_on_in_ = life_;
  LookOn();
}

void SimProxy::LookOn() {
  sim_.queue.In(kLookEveryMs, [this, life = life_] {
    if (life_ != life || !alive()) return;
    LookNow();
    LookOn();
  });
}

proxy::EngineSeen SimProxy::Look() const {
  proxy::EngineSeen seen{engine_.boot(),    engine_.limits(),     "1",
                         engine_.problem(), engine_.SaysAsleep(), passed_};
  if (sim_.plant == Plant::kSleepIsHidden) seen.asleep = false;
  if (sim_.plant == Plant::kLooksAreNeverOld) seen.passed = UINT64_MAX;
  seen.base_model = engine_.base_model();
  return seen;
}

// Beside a framework's call a look takes its time, and may end when the call has ended. What was seen
// later is told later.
void SimProxy::Told(proxy::EngineSeen seen) {
  const int64_t takes = framework_.open.empty() ? 0 : sim_.Latency(kLookTakesMs);
  looked_at_ = std::max(looked_at_, sim_.now() + takes);
  if (looked_at_ == sim_.now()) return Post(seen);
  sim_.queue.In(looked_at_ - sim_.now(), [this, life = life_, seen = std::move(seen)] {
    // Not once a later look has found that it ended.
    if (life_ == life && alive() && seen.boot == seen_boot_ && sim_.now() >= blind_until_)
      Post(seen);
  });
}

void SimProxy::LoseSight(int64_t ms, bool ended) {
  if (!alive() || !engine_.up() || seen_boot_.empty()) return;
  blind_until_ = sim_.now() + ms;
  if (ended) engine_.SeemsDead();
  Post(proxy::EngineLost{ended});
  sim_.queue.In(ms, [this] { EngineChanged(); });
}

}  // namespace lorry::sim
