#include "tests/sim/swarm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/demands.h"
#include "tests/sim/draw.h"
#include "tests/sim/world.h"

namespace lorry::sim {
namespace {

const AdapterName kMath("math");
const AdapterName kCode("code");
const PoolName kRollout("rollout");
const PoolName kEval("eval");

constexpr int64_t kSecond = 1'000;
// Two a second: longer than the stage deadline, beyond which a sync must have ended.
constexpr int kEndlessPublishes = 80;
constexpr int64_t kPauseDeadline = 5 * kSecond;

class Run {
 public:
  Run(uint64_t seed, Plant plant, bool narrates)
      : world_(seed), sim_(world_.sim()), mishaps_(seed) {
    sim_.plant = plant;
    sim_.narrates = narrates;
  }

  Result Do() {
    DrawFleet();
    Faults drawn = DrawFaults(sim_.prng);
    Provoke(drawn);
    world_.RunFor(2 * kSecond);
    drawn.misfit_version = mishaps_.misfit_version;
    drawn.other_base = mishaps_.other_base;
    drawn.ignored = mishaps_.ignored;
    sim_.faults = drawn;
    const int64_t seconds = 30 + static_cast<int64_t>(sim_.prng.Below(60));
    for (int64_t second = 0; second < seconds && !Violated(); ++second) {
      Disturb();
      Mishap();
      Work();
      world_.RunFor(kSecond);
      CheckSyncs();
    }
    Heal();
    Demand();
    return Report();
  }

 private:
  bool Violated() const { return sim_.oracle.violated(); }
  uint64_t Below(uint64_t bound) { return sim_.prng.Below(bound); }

  void DrawFleet() {
    fleet::AdapterPolicy policy = DrawPolicy(sim_.prng);
    const bool has_eval = Below(4) == 0;
    if (has_eval) policy.pools[kEval] = {fleet::PoolSource::Kind::kPool, kRollout, {}};
    adapters_.push_back(kMath);
    if (Below(2) == 0) adapters_.push_back(kCode);
    // Enough for each adapter's window, one alias, one lease and the next version; sometimes one
    // too few.
    const uint32_t slots =
        Below(3) == 0 ? 0
                      : static_cast<uint32_t>(adapters_.size()) * (policy.KeepCount() + 2) + 3 -
                            static_cast<uint32_t>(Below(2));
    for (const AdapterName& adapter : adapters_) {
      world_.store().SetAdapter(adapter, policy);
      world_.store().OpenRun(adapter);
    }
    world_.StartLeader();
    const uint64_t members = 1 + Below(4);
    for (uint64_t i = 1; i <= members; ++i) {
      const fleet::EngineKind kind =
          Below(2) == 0 ? fleet::EngineKind::kSglang : fleet::EngineKind::kVllm;
      world_.AddMember(absl::StrCat("e", i), kind, slots,
                       has_eval && i == members && i > 1 ? kEval : kRollout);
    }
  }

  // What a planted bug needs to show itself, often.
  void Provoke(Faults& drawn) {
    const Plant plant = sim_.plant;
    if (plant == Plant::kFenceIsIgnored || plant == Plant::kLowerTermIsObeyed)
      drawn.leader_zombie = drawn.leader_kill = 300;
    if (plant == Plant::kLeaseIsNotWritten) drawn.leader_kill = 100;
    if (plant == Plant::kLockIsNotWritten) drawn.proxy_kill = mishaps_.hold = 150;
    if (plant == Plant::kMisfitIsLoaded) mishaps_.misfit_version = 300;
    if (plant == Plant::kProbeIsBlind) mishaps_.ignored = 300;
  }

  void Disturb() {
    for (auto& [member, proxy] : world_.proxies()) {
      if (sim_.Chance(sim_.faults.engine_kill)) world_.KillEngine(*proxy);
      if (!proxy->engine().up() && Below(5) == 0) world_.StartEngine(*proxy);
      if (sim_.Chance(sim_.faults.vanish)) proxy->engine().Vanish();
      if (sim_.Chance(sim_.faults.proxy_kill)) proxy->Kill(sim_.Chance(sim_.faults.journal_loss));
      if (!proxy->alive() && Below(3) == 0) {
        if (sim_.Chance(sim_.faults.rot)) proxy->Rot();
        proxy->Start();
      }
      if (sim_.Chance(sim_.faults.partition)) {
        world_.Partition(member, sim_.now() + static_cast<int64_t>(Below(15 * kSecond)));
      }
    }
    if (sim_.Chance(sim_.faults.leader_kill)) {
      if (sim_.Chance(sim_.faults.leader_zombie)) {
        world_.AbandonLeader();
      } else {
        world_.KillLeader();
      }
    }
    if (world_.leader() == nullptr && Below(3) == 0) world_.StartLeader();
  }

  void Mishap() {
    Prng& prng = mishaps_.prng;
    if (mishaps_.Chance(mishaps_.watch_break)) {
      world_.BreakWatch(static_cast<int64_t>(prng.Below(10 * kSecond)));
    }
    if (mishaps_.Chance(mishaps_.policy_change)) {
      const AdapterName& adapter = adapters_[prng.Below(adapters_.size())];
      fleet::AdapterPolicy policy = DrawPolicy(prng);
      policy.pools = world_.store().adapters().at(adapter).policy.pools;
      if (mishaps_.Chance(mishaps_.barrier)) policy.mode = fleet::SyncMode::kBarrier;
      world_.store().SetAdapter(adapter, policy);
    }
    if (mishaps_.Chance(mishaps_.records_loss)) {
      world_.LoseRecords();
      world_.KillLeader();
    }
    if (prng.Below(3) == 0) world_.AdoptIfAsked();
    for (auto& [member, proxy] : world_.proxies()) {
      if (mishaps_.Chance(mishaps_.sleep)) {
        world_.PutToSleep(member, static_cast<int64_t>(prng.Below(15 * kSecond)));
        if (prng.Below(2) == 0) proxy->engine().Vanish();
      }
      Operate(member, *proxy);
    }
    world_.RepeatWishes();
  }

  // Pauses, holds and locks, as a barrier asks for them; most last longer than their deadlines.
  void Operate(const MemberId& member, SimProxy& proxy) {
    proxy.CheckPause(kPauseDeadline);
    if (mishaps_.pause + mishaps_.hold == 0) return;
    World::Wish& wish = wishes_[member];
    const World::Wish before = wish;
    if (mishaps_.prng.Below(6) == 0) wish = World::Wish();
    if (mishaps_.Chance(mishaps_.pause)) {
      constexpr fleet::PauseKind kKinds[] = {fleet::PauseKind::kAbort, fleet::PauseKind::kInPlace,
                                             fleet::PauseKind::kKeep, fleet::PauseKind::kDrain};
      wish.pause = {kKinds[mishaps_.prng.Below(4)], kPauseDeadline, false};
    }
    if (wish.rows == fleet::RowMode::kHeld && mishaps_.prng.Below(2) == 0) {
      wish.rows = fleet::RowMode::kLocked;
    } else if (mishaps_.Chance(mishaps_.hold)) {
      wish.rows = fleet::RowMode::kHeld;
      wish.hold_for_ms = static_cast<int64_t>(mishaps_.prng.Below(4 * kSecond));
    }
    if (wish != before) world_.SetWish(member, wish);
  }

  void Work() {
    for (const AdapterName& adapter : adapters_) WorkOn(adapter);
    if (Below(10) == 0) world_.store().CollectGarbage();
    if (Below(30) == 0) Mark();
    for (auto& [member, proxy] : world_.proxies()) {
      for (uint64_t i = Below(4); i > 0; --i) {
        const int64_t lasts = sim_.Chance(sim_.faults.long_request)
                                  ? 60 * kSecond
                                  : 1 + static_cast<int64_t>(Below(3 * kSecond));
        const AdapterName& adapter = adapters_[Below(adapters_.size())];
        Below(3) == 0 ? proxy->RequestSome(lasts) : proxy->Request({{adapter.value}, 1, lasts});
      }
    }
  }

  void WorkOn(const AdapterName& adapter) {
    if (Below(6) == 0) Publish(adapter);
    if (Below(60) == 0) Resume(adapter);
    const std::optional<VersionKey> newest = world_.store().Newest(adapter);
    if (!newest.has_value()) return;
    if (Below(25) == 0) world_.Watch(*newest, kRollout);
    if (Below(25) == 0) {
      world_.store().SetAlias(adapter, AliasName("eval"), Below(3) == 0 ? std::nullopt : newest);
    }
    if (Below(20) == 0) {
      sync::LeaseAsked ask;
      ask.request = world_.NewRequest();
      ask.selector = {adapter,
                      Below(2) == 0 ? sync::Selector::Kind::kLatest : sync::Selector::Kind::kNewest,
                      {},
                      {},
                      {}};
      ask.pool = kRollout;
      ask.holder = "client";
      ask.ttl_ms = Below(3) == 0 ? 0 : static_cast<int64_t>(Below(20 * kSecond));
      world_.Call(ask, ask.request);
    }
    if (Below(40) == 0) Override(adapter);
  }

  void Publish(const AdapterName& adapter) {
    const VersionKey key =
        world_.store().Publish(adapter, std::nullopt, sim_.Chance(sim_.faults.killer_version));
    if (Below(3) == 0) world_.Watch(key, kRollout);
  }

  // The trainer goes back: a new run, whose numbers begin lower.
  void Resume(const AdapterName& adapter) {
    const std::optional<VersionKey> newest = world_.store().Newest(adapter);
    world_.store().OpenRun(adapter);
    const uint64_t back = newest.has_value() ? newest->number.value / 2 + 1 : 1;
    world_.store().Publish(adapter, VersionNumber(back), false);
  }

  void Override(const AdapterName& adapter) {
    sync::OverrideSet set;
    set.request = world_.NewRequest();
    set.adapter = adapter;
    set.pool = kRollout;
    if (Below(2) == 0) {
      const auto& versions = world_.store().versions();
      auto it = versions.begin();
      std::advance(it, Below(versions.size()));
      if (it->first.adapter == adapter) set.version = it->first;
    }
    world_.Call(set, set.request);
  }

  void Mark() {
    sync::MemberMarked mark;
    mark.request = world_.NewRequest();
    mark.member = MemberId(absl::StrCat("e", 1 + Below(world_.proxies().size())));
    const sync::MemberMark marks[] = {sync::MemberMark::kExcluded, sync::MemberMark::kIncluded,
                                      sync::MemberMark::kDead};
    mark.mark = marks[Below(3)];
    mark.why = "test";
    world_.Call(mark, mark.request);
  }

  // 11: no sync lasts beyond its stage deadline, whatever its members do.
  void CheckSyncs() {
    SimLeader* leader = world_.leader();
    if (leader == nullptr) return syncs_.clear();
    if (leader->id() != syncs_of_) syncs_.clear();
    syncs_of_ = leader->id();
    const sync::Status status = leader->machine().GetStatus();
    sim_.oracle.KnowsLeases(status.leases);
    for (const sync::PoolStatus& pool : status.pools) {
      const std::string id = absl::StrCat(pool.adapter.value, "/", pool.pool.value);
      if (!pool.sync.has_value()) {
        syncs_.erase(id);
        continue;
      }
      auto& [epoch, since] = syncs_[id];
      if (epoch != pool.sync->epoch) since = sim_.now();
      epoch = pool.sync->epoch;
      if (sim_.now() - since > 23 * kSecond) {
        sim_.oracle.Violate(11, absl::StrCat("the sync of ", id, " outlived its stage deadline"));
      }
    }
  }

  // No more faults, everything is started again, operators lift what they imposed.
  void Heal() {
    if (Violated()) return;
    sim_.faults = Faults();
    for (const auto& [member, wish] : wishes_) world_.SetWish(member, World::Wish());
    if (world_.leader() == nullptr) world_.StartLeader();
    world_.RunFor(kSecond);  // it has read the store
    for (auto& [member, proxy] : world_.proxies()) {
      if (proxy->engine().base_model().hidden_size != 1) world_.KillEngine(*proxy);
      world_.StartEngine(*proxy);
      proxy->Start();
      sync::MemberMarked mark{world_.NewRequest(), member, sync::MemberMark::kIncluded, ""};
      world_.Call(mark, mark.request);
    }
    for (const AdapterName& adapter : adapters_) {
      sync::OverrideSet lift{world_.NewRequest(), adapter, kRollout, std::nullopt};
      world_.Call(lift, lift.request);
      world_.store().SetAlias(adapter, AliasName("eval"), std::nullopt);
    }
    // Requests and loads that began under faults may still take their minute.
    for (int i = 0; i < 14 && !Violated(); ++i) {
      Supervise();
      world_.AdoptIfAsked();
      world_.RepeatWishes();
      world_.RunFor(5 * kSecond);
    }
    // 12: under endless publishing some version is decided.
    const uint64_t before = sim_.oracle.commits();
    // Few seeds go on to where names wait in dozens to be unloaded; the others have seen enough
    // after some decisions.
    const uint64_t enough = Below(16) == 0 ? kEndlessPublishes : 3 * adapters_.size();
    for (int i = 0; i < kEndlessPublishes && !Violated(); ++i) {
      if (sim_.oracle.commits() - before >= enough) break;
      for (const AdapterName& adapter : adapters_)
        world_.store().Publish(adapter, std::nullopt, false);
      Supervise();
      world_.RunFor(kSecond / 2);
    }
    if (!Violated() && sim_.oracle.commits() == before && !SaysWhyNothingMoves(world_)) {
      sim_.oracle.Violate(12, "nothing was decided under endless publishing");
    }
  }

  // 13: every live member reaches what is desired, or says why not.
  void Demand() {
    for (int i = 0; i < 40 && !Violated(); ++i) {
      Supervise();
      world_.RunFor(5 * kSecond);
      if (WhyUnsettled(world_, kRollout).empty()) return;
    }
    if (!Violated()) sim_.oracle.Violate(13, WhyUnsettled(world_, kRollout));
  }

  // Engines that died of what was published before are started again, as by anyone's supervisor.
  void Supervise() {
    for (auto& [member, proxy] : world_.proxies()) {
      if (!proxy->engine().up()) world_.StartEngine(*proxy);
    }
  }

  Result Report() {
    Result result;
    result.hash = sim_.hash;
    if (Violated()) result.violation = sim_.oracle.violation();
    result.state = world_.Describe();
    result.commits = sim_.oracle.commits();
    result.aborts = sim_.oracle.aborts();
    result.steps = sim_.steps;
    return result;
  }

  World world_;
  Sim& sim_;
  Mishaps mishaps_;
  std::map<MemberId, World::Wish> wishes_;
  std::vector<AdapterName> adapters_;
  std::map<std::string, std::pair<Epoch, Tick>> syncs_;
  uint64_t syncs_of_ = 0;
};

}  // namespace

Result RunSeed(uint64_t seed, Plant plant, bool narrates) {
  return Run(seed, plant, narrates).Do();
}

}  // namespace lorry::sim
