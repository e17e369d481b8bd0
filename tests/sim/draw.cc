#include "tests/sim/draw.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "lib/fleet/quiesce.h"

namespace lorry::sim {
namespace {

uint64_t Some(Prng& prng, uint64_t most) { return prng.Below(2) == 0 ? 0 : prng.Below(most + 1); }
// Of the numbers that what was added later is drawn from.
constexpr uint64_t kMore = 0x9e3779b97f4a7c15ull;
constexpr uint64_t kRest = 0xbf58476d1ce4e5b9ull;

uint64_t Seldom(Prng& prng, uint64_t most) { return prng.Below(4) == 0 ? prng.Below(most + 1) : 0; }

}  // namespace

const std::vector<FaultRow> kFaultRows = {{"drop", &Faults::drop},
                                          {"duplicate", &Faults::duplicate},
                                          {"partition", &Faults::partition},
                                          {"proxy_crash", &Faults::proxy_crash},
                                          {"proxy_kill", &Faults::proxy_kill},
                                          {"journal_loss", &Faults::journal_loss},
                                          {"rot", &Faults::rot},
                                          {"leader_crash", &Faults::leader_crash},
                                          {"leader_kill", &Faults::leader_kill},
                                          {"leader_zombie", &Faults::leader_zombie},
                                          {"engine_kill", &Faults::engine_kill},
                                          {"engine_slow", &Faults::engine_slow},
                                          {"answer_lost", &Faults::answer_lost},
                                          {"load_fails", &Faults::load_fails},
                                          {"probe_fails", &Faults::probe_fails},
                                          {"counter_leaks", &Faults::counter_leaks},
                                          {"vanish", &Faults::vanish},
                                          {"implicit_reload", &Faults::implicit_reload},
                                          {"fetch_fails", &Faults::fetch_fails},
                                          {"fetch_away", &Faults::fetch_away},
                                          {"delete_fails", &Faults::delete_fails},
                                          {"look_fails", &Faults::look_fails},
                                          {"look_ends", &Faults::look_ends},
                                          {"problem", &Faults::problem},
                                          {"other_limits", &Faults::other_limits},
                                          {"killer_version", &Faults::killer_version},
                                          {"kills_at_use", &Faults::kills_at_use},
                                          {"refused_version", &Faults::refused_version},
                                          {"refused_somewhere", &Faults::refused_somewhere},
                                          {"unservable", &Faults::unservable},
                                          {"same_bytes", &Faults::same_bytes},
                                          {"misfit_version", &Faults::misfit_version},
                                          {"long_request", &Faults::long_request},
                                          {"children", &Faults::children},
                                          {"direct", &Faults::direct},
                                          {"stale_hello", &Faults::stale_hello},
                                          {"disk_slow", &Faults::disk_slow},
                                          {"disk_full", &Faults::disk_full},
                                          {"disk_fails", &Faults::disk_fails},
                                          {"evict", &Faults::evict},
                                          {"ignored", &Faults::ignored},
                                          {"other_base", &Faults::other_base},
                                          {"words", &Faults::words},
                                          {"breaks_off", &Faults::breaks_off}};

const std::vector<MishapRow> kMishapRows = {{"watch_break", &Mishaps::watch_break},
                                            {"policy_change", &Mishaps::policy_change},
                                            {"barrier", &Mishaps::barrier},
                                            {"pool_leaves", &Mishaps::pool_leaves},
                                            {"records_loss", &Mishaps::records_loss},
                                            {"records_older", &Mishaps::records_older},
                                            {"both_older", &Mishaps::both_older},
                                            {"sleep", &Mishaps::sleep},
                                            {"quiesce", &Mishaps::quiesce},
                                            {"long_pause", &Mishaps::long_pause},
                                            {"move", &Mishaps::move},
                                            {"join", &Mishaps::join},
                                            {"stop", &Mishaps::stop},
                                            {"leave", &Mishaps::leave},
                                            {"leave_loading", &Mishaps::leave_loading},
                                            {"forget", &Mishaps::forget},
                                            {"retry", &Mishaps::retry},
                                            {"on_demand", &Mishaps::on_demand},
                                            {"store_older", &Mishaps::store_older},
                                            {"retire", &Mishaps::retire},
                                            {"framework", &Mishaps::framework},
                                            {"release", &Mishaps::release},
                                            {"bind", &Mishaps::bind},
                                            {"full", &Mishaps::full},
                                            {"source", &Mishaps::source},
                                            {"pool_out", &Mishaps::pool_out},
                                            {"roll_back", &Mishaps::roll_back},
                                            {"many", &Mishaps::many},
                                            {"meddle", &Mishaps::meddle}};

const std::vector<std::string> kWorkNames = {"requests", "aliases", "leases",  "overrides",
                                             "marks",    "garbage", "watches", "runs",
                                             "code",     "eval",    "shadow",  "delay"};

fleet::AdapterPolicy DrawPolicy(Prng& prng) {
  fleet::AdapterPolicy policy;
  policy.stage_deadline_ms = kStageDeadlineMs;
  policy.max_staleness = static_cast<uint32_t>(prng.Below(3));
  if (prng.Below(3) == 0) policy.skip = fleet::SkipMode::kNever;
  switch (prng.Below(4)) {
    case 0:
      policy.min_engines = {false, 1 + static_cast<uint32_t>(prng.Below(3))};
      break;
    case 1:
      policy.min_engines = {true, 1 + static_cast<uint32_t>(prng.Below(100))};
      break;
    default:
      break;
  }
  if (prng.Below(3) == 0)
    policy.keep = {fleet::KeepRule::Kind::kCount, 1 + static_cast<uint32_t>(prng.Below(2))};
  if (prng.Below(12) == 0) policy.keep = {fleet::KeepRule::Kind::kAll, 0};
  if (prng.Below(4) == 0)
    policy.stale = prng.Below(2) == 0 ? fleet::StaleMode::kHold : fleet::StaleMode::kTag;
  return policy;
}

void DrawQuiesce(Prng& prng, fleet::AdapterPolicy& policy) {
  using fleet::PauseKind;
  // Mostly what every kind of engine has: the others do not serve the adapter then.
  constexpr PauseKind kKinds[] = {PauseKind::kDrain, PauseKind::kDrain,   PauseKind::kAbort,
                                  PauseKind::kAbort, PauseKind::kRetract, PauseKind::kInPlace,
                                  PauseKind::kWait,  PauseKind::kKeep};
  policy.quiesce = kKinds[prng.Below(std::size(kKinds))];
  policy.drain_deadline_ms = 1 + static_cast<int64_t>(prng.Below(kDrainDeadlineMostMs));
  if (policy.mode != fleet::SyncMode::kBarrier)
    policy.barrier_deadline_ms =
        500 + static_cast<int64_t>(prng.Below(kBarrierDeadlineMostMs - 500));
  // All that flush can.
  policy.flush = fleet::FlushMode::kAlways;
  policy.in_flight = fleet::InFlightMode::kAbort;
  if (!fleet::WhyNotTogether(policy).empty()) policy.in_flight = fleet::InFlightMode::kFinishOnOld;
  if (!fleet::WhyNotTogether(policy).empty()) policy.flush = fleet::FlushMode::kAuto;
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
  faults.fetch_away = Seldom(prng, 600);
  faults.delete_fails = Seldom(prng, 500);
  faults.look_fails = Seldom(prng, 60);
  faults.look_ends = Seldom(prng, 300);
  faults.problem = Seldom(prng, 200);
  faults.other_limits = Seldom(prng, 300);
  faults.killer_version = Some(prng, 150);
  faults.kills_at_use = Some(prng, 150);
  faults.refused_version = Seldom(prng, 150);
  faults.refused_somewhere = Seldom(prng, 150);
  faults.unservable = Seldom(prng, 150);
  faults.same_bytes = Seldom(prng, 500);
  faults.misfit_version = Seldom(prng, 150);
  faults.long_request = Some(prng, 50);
  faults.children = Some(prng, 500);
  faults.stale_hello = Seldom(prng, 500);
  faults.turn_ms = prng.Below(3) == 0 ? 50 : 0;
  faults.disk_slow = Seldom(prng, 100);
  faults.disk_full = Seldom(prng, 300);
  faults.disk_fails = Seldom(prng, 10);
  return faults;
}

void DrawMore(uint64_t seed, Faults& faults) {
  Prng prng(seed ^ kMore);
  faults.direct = Seldom(prng, 500);
  faults.evict = Seldom(prng, 600);
  faults.ignored = IsOneIn(absl::StrCat("ignored ", seed), 150) ? 100 : 0;
  faults.other_base = IsOneIn(absl::StrCat("other_base ", seed), 150) ? 100 : 0;
  faults.words = IsOneIn(absl::StrCat("words ", seed), 250) ? 1'000 : 0;
  faults.breaks_off = IsOneIn(absl::StrCat("breaks_off ", seed), 150) ? 200 : 0;
  // A journal on a disk that is lost with its process.
  if (IsOneIn(absl::StrCat("volatile ", seed), 50)) faults.journal_loss = 1'000;
}

Mishaps::Mishaps(uint64_t seed) : prng(~seed), rest(~seed ^ kRest) {
  watch_break = Seldom(prng, 60);
  policy_change = Seldom(prng, 60);
  barrier = Some(prng, 500);
  pool_leaves = Some(prng, 300);
  records_loss = Seldom(prng, 20);
  records_older = can::kRestoreRecords ? Seldom(prng, 20) : 0;
  sleep = Seldom(prng, 60);
  Seldom(prng, 150);  // means nothing any more
  join = Seldom(prng, 60);
  stop = Seldom(prng, 60);
  // Not of these numbers, so that seeds that are kept stay what they were.
  leave = IsOneIn(absl::StrCat("leave ", seed), 250) ? 40 : 0;
  both_older = IsOneIn(absl::StrCat("both_older ", seed), 300) ? 1'000 : 0;
  leave_loading = IsOneIn(absl::StrCat("leave_loading ", seed), 100) ? 200 : 0;
  forget = IsOneIn(absl::StrCat("forget ", seed), 250) ? 1'000 : 0;
  on_demand = IsOneIn(absl::StrCat("on_demand ", seed), 150) ? 1'000 : 0;
  long_pause = IsOneIn(absl::StrCat("long_pause ", seed), 100) ? 1'000 : 0;
  retire = IsOneIn(absl::StrCat("retire ", seed), 250) ? 40 : 0;
  framework = IsOneIn(absl::StrCat("framework ", seed), 200) ? 150 : 0;
  release = IsOneIn(absl::StrCat("release ", seed), 200) ? 100 : 0;
  bind = IsOneIn(absl::StrCat("bind ", seed), 200) ? 400 : 0;
  full = IsOneIn(absl::StrCat("full ", seed), 250) ? 1'000 : 0;
  source = IsOneIn(absl::StrCat("source ", seed), 150) ? 60 : 0;
  pool_out = IsOneIn(absl::StrCat("pool_out ", seed), 150) ? 60 : 0;
  roll_back = IsOneIn(absl::StrCat("roll_back ", seed), 150) ? 300 : 0;
  many = IsOneIn(absl::StrCat("many ", seed), 5) ? 1'000 : 0;
  Prng more(~seed ^ kMore);
  move = Seldom(more, 30);
  retry = Seldom(more, 200);
  store_older = can::kRestoreStore ? Seldom(more, 20) : 0;
  meddle = Seldom(more, 700);
  quiesce = Some(more, 700);
}

void Drop(const Without& without, Faults& faults) {
  for (const FaultRow& row : kFaultRows) {
    if (!without.Has(row.name)) faults.*row.chance = 0;
  }
  if (!without.Has("delay")) faults.delay_ms = 5;
}

void Drop(const Without& without, Mishaps& mishaps) {
  for (const MishapRow& row : kMishapRows) {
    if (!without.Has(row.name)) mishaps.*row.chance = 0;
  }
}

}  // namespace lorry::sim
