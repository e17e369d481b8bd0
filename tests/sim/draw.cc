#include "tests/sim/draw.h"

namespace lorry::sim {
namespace {

uint64_t Some(Prng& prng, uint64_t most) { return prng.Below(2) == 0 ? 0 : prng.Below(most + 1); }
uint64_t Seldom(Prng& prng, uint64_t most) { return prng.Below(4) == 0 ? prng.Below(most + 1) : 0; }

}  // namespace

fleet::AdapterPolicy DrawPolicy(Prng& prng) {
  fleet::AdapterPolicy policy;
  policy.stage_deadline_ms = 20'000;
  policy.max_staleness = static_cast<uint32_t>(prng.Below(3));
  if (prng.Below(3) == 0) policy.skip = fleet::SkipRule::kNever;
  if (prng.Below(3) == 0) policy.min_engines = {false, 1};
  if (prng.Below(3) == 0)
    policy.keep = {fleet::KeepRule::Kind::kCount, 1 + static_cast<uint32_t>(prng.Below(2))};
  return policy;
}

Faults DrawFaults(Prng& prng) {
  Faults faults;
  faults.drop = Some(prng, 200);
  faults.duplicate = Some(prng, 200);
  faults.delay_ms = prng.Below(3) == 0 ? 2'000 : 5;
  faults.partition = Some(prng, 30);
  faults.proxy_crash = Some(prng, 10);
  faults.proxy_kill = Some(prng, 20);
  faults.journal_loss = Some(prng, 100);
  faults.rot = Some(prng, 100);
  faults.leader_crash = Some(prng, 5);
  faults.leader_kill = Some(prng, 40);
  faults.leader_zombie = Some(prng, 500);
  faults.engine_kill = Some(prng, 30);
  faults.engine_slow = Some(prng, 200);
  faults.answer_lost = Some(prng, 100);
  faults.load_fails = Some(prng, 200);
  faults.probe_fails = Some(prng, 100);
  faults.counter_leaks = prng.Below(4) == 0 ? 50 : 0;
  faults.vanish = Some(prng, 30);
  faults.implicit_reload = Some(prng, 300);
  faults.fetch_fails = Some(prng, 200);
  faults.killer_version = Some(prng, 150);
  faults.long_request = Some(prng, 50);
  faults.turn_ms = prng.Below(3) == 0 ? 50 : 0;
  faults.disk_slow = Seldom(prng, 100);
  faults.disk_full = Seldom(prng, 300);
  faults.disk_fails = Seldom(prng, 10);
  return faults;
}

Mishaps::Mishaps(uint64_t seed) : prng(~seed) {
  watch_break = Seldom(prng, 60);
  policy_change = Seldom(prng, 60);
  barrier = Some(prng, 500);
  records_loss = Seldom(prng, 20);
  sleep = Seldom(prng, 60);
  pause = Seldom(prng, 150);
  hold = Seldom(prng, 150);
}

}  // namespace lorry::sim
