#include "tests/sim/swarm.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/demands.h"
#include "tests/sim/draw.h"
#include "tests/sim/looks.h"
#include "tests/sim/pools.h"
#include "tests/sim/work.h"
#include "tests/sim/world.h"

namespace lorry::sim {
namespace {

const AdapterName kMath("math");
const AdapterName kCode("code");
const PoolName kRollout("rollout");
const PoolName kEval("eval");
const PoolName kShadow("shadow");  // follows an alias

constexpr int64_t kSecond = 1'000;
// Two a second: longer than the stage deadline, beyond which a sync must have ended.
constexpr int kEndlessPublishes = 80;
constexpr uint64_t kLargeOneIn = 64;  // fleets
// More adapters than slots: what they need together is two, and some for aliases and leases.
const std::vector<AdapterName> kSeldomAsked = {AdapterName("a"), AdapterName("b"),
                                               AdapterName("c")};
constexpr uint32_t kSharedSlots = 3;
constexpr int64_t kDemandWaitMs = 20'000;
constexpr size_t kJoinsMost = 8;
constexpr uint64_t kBinds = 0xb1d5;
constexpr int64_t kForgetMs = 8 * kSecond;  // of those that forget: some partitions last longer

class Run {
 public:
  explicit Run(const Plan& plan)
      : plan_(plan),
        world_(plan.seed),
        sim_(world_.sim()),
        mishaps_(plan.seed),
        binds_(plan.seed ^ kBinds),
        work_(world_, plan_.without),
        pools_(world_, mishaps_, plan.seed) {
    sim_.plant = plan.plant;
    sim_.narrates = plan.narrates;
  }

  Result Do() {
    if (mishaps_.forget > 0 && Has("forget")) world_.ForgetAfter(kForgetMs);
    if (mishaps_.long_pause > 0) sim_.drain_deadline_most_ms = kLongDrainDeadlineMostMs;
    DrawFleet();
    Faults drawn = DrawFaults(sim_.prng);
    DrawMore(plan_.seed, drawn);
    Provoke(drawn);
    Drop(plan_.without, drawn);
    Drop(plan_.without, mishaps_);
    const int64_t seconds = DrawSeconds();
    if (plan_.without.salt != 0) sim_.prng = Prng(plan_.seed ^ plan_.without.salt);
    world_.RunFor(2 * kSecond);
    sim_.faults = drawn;
    for (int64_t second = 0; second < seconds && !Violated(); ++second) {
      Disturb();
      Mishap();
      work_.Second();
      world_.RunFor(kSecond);
      Look();
    }
    Heal();
    Demand();
    return Report();
  }

 private:
  bool Has(const char* name) const { return plan_.without.Has(name); }
  bool Violated() const { return sim_.oracle.violated(); }
  uint64_t Below(uint64_t bound) { return sim_.prng.Below(bound); }

  void DrawFleet() {
    fleet::AdapterPolicy policy = DrawPolicy(sim_.prng);
    DrawMode(policy);
    const bool has_eval = (Below(4) == 0 || MovesPools()) && Has("eval");
    const bool has_shadow = Below(4) == 0 && Has("shadow");
    if (has_eval) policy.pools[kEval] = {fleet::PoolSource::Kind::kPool, kRollout, {}};
    if (has_shadow)
      policy.pools[kShadow] = {fleet::PoolSource::Kind::kAlias, {}, AliasName("eval")};
    std::vector<AdapterName> adapters{kMath};
    if (Below(2) == 0 && Has("code")) adapters.push_back(kCode);
    // Enough for each adapter's window, one alias, one lease and the next version; sometimes one
    // too few. What keeps everything has no end of slots.
    const uint64_t fewer = Below(2);
    const bool is_bounded = Below(3) != 0 && policy.keep.kind != fleet::KeepRule::Kind::kAll;
    const uint64_t needed = adapters.size() * (policy.KeepCount() + uint64_t{2}) + 4 - fewer;
    uint32_t slots = is_bounded ? static_cast<uint32_t>(needed) : 0;
    if (IsOnDemand()) {
      for (const AdapterName& adapter : kSeldomAsked) adapters.push_back(adapter);
      slots = kSharedSlots + static_cast<uint32_t>(mishaps_.rest.Below(kSharedSlots));
    }
    for (const AdapterName& adapter : adapters) {
      DrawResidency(policy);
      world_.store().SetAdapter(adapter, policy);
      world_.store().OpenRun(adapter);
      work_.Add(adapter);
    }
    if (mishaps_.many > 0 && Has("many")) pools_.DrawPast();
    world_.StartLeader();
    const bool is_large = Below(kLargeOneIn) == 0;
    const uint64_t members =
        std::min(is_large ? 8 + Below(57) : 1 + Below(4), plan_.without.members_most);
    slots_ = slots;
    for (uint64_t i = 1; i <= members; ++i) {
      const bool is_last = i == members && i > 1;
      AddMember(is_last && has_eval ? kEval : is_last && has_shadow ? kShadow : kRollout);
    }
  }

  bool MovesPools() const { return mishaps_.source + mishaps_.pool_out + mishaps_.roll_back > 0; }

  void DrawMode(fleet::AdapterPolicy& policy) {
    if (mishaps_.Chance(mishaps_.barrier)) {
      policy.mode = fleet::SyncMode::kBarrier;
      policy.barrier_deadline_ms =
          500 + static_cast<int64_t>(mishaps_.prng.Below(kBarrierDeadlineMostMs - 500));
    }
    if (!mishaps_.rest.Chance(mishaps_.quiesce)) return;
    DrawQuiesce(mishaps_.rest, policy);
    if (mishaps_.long_pause > 0 && Has("long_pause"))
      policy.drain_deadline_ms *= kLongDrainDeadlineMostMs / kDrainDeadlineMostMs;
  }

  bool IsOnDemand() const { return mishaps_.on_demand > 0 && Has("on_demand"); }

  void DrawResidency(fleet::AdapterPolicy& policy) {
    if (!IsOnDemand()) return;
    const bool is_resident = mishaps_.rest.Below(6) == 0;
    policy.residency =
        is_resident ? fleet::ResidencyMode::kResident : fleet::ResidencyMode::kOnDemand;
    policy.demand_wait_ms = kDemandWaitMs;
  }

  void AddMember(const PoolName& pool) {
    const fleet::EngineKind kind =
        Below(2) == 0 ? fleet::EngineKind::kSglang : fleet::EngineKind::kVllm;
    world_.AddMember(absl::StrCat("e", world_.proxies().size() + 1), kind, slots_, pool);
  }

  int64_t DrawSeconds() {
    const bool is_large = world_.proxies().size() > 8;
    const uint64_t seconds = is_large ? 10 + Below(10) : 30 + Below(60);
    return std::min(static_cast<int64_t>(seconds), plan_.without.seconds_most);
  }

  // What a planted bug needs to show itself, often.
  void Provoke(Faults& drawn) {
    const Plant plant = sim_.plant;
    if (plant == Plant::kFenceIsIgnored || plant == Plant::kLowerTermIsObeyed)
      drawn.leader_zombie = drawn.leader_kill = 300;
    if (plant == Plant::kLeaseIsNotWritten) drawn.leader_kill = 100;
    if (plant == Plant::kDoorsAreNotBelieved) mishaps_.records_older = mishaps_.both_older = 100;
    if (plant == Plant::kLockIsNotWritten) {
      // Behind an earlier barrier a row waits to be told anyway.
      mishaps_.policy_change = 200;
      mishaps_.barrier = 500;
      drawn.delay_ms = 2'000;  // doors are locked for as long
    }
    if (plant == Plant::kPauseIsIgnored || plant == Plant::kResumeIsIgnored) {
      mishaps_.policy_change = 200;
      mishaps_.quiesce = 1'000;
      drawn.long_request = 500;
    }
    if (plant == Plant::kFrameworkIsIgnored || plant == Plant::kFrameworkHasNoEnd)
      mishaps_.framework = 100;
    if (plant == Plant::kSleepIsNotWritten || plant == Plant::kLooksAreNeverOld)
      mishaps_.release = 200;
    if (plant == Plant::kSleepIsHidden) mishaps_.sleep = 100;
    if (plant == Plant::kApartIsNotWritten) drawn.engine_kill = drawn.proxy_kill = 30;
    if (plant == Plant::kMisfitIsLoaded) drawn.misfit_version = 300;
    if (plant == Plant::kProbeIsBlind || plant == Plant::kGapIsBlind ||
        plant == Plant::kApartIsNotWritten)
      drawn.ignored = 300;
    if (plant == Plant::kGoodbyeComesFirst) {
      // The others decide while one is away.
      mishaps_.leave = 60;
      mishaps_.barrier = 1'000;
      mishaps_.meddle = mishaps_.move = mishaps_.retry = 0;
      drawn.partition = drawn.drop = drawn.direct = drawn.evict = 0;
    }
  }

  void Disturb() {
    for (auto& [member, proxy] : world_.proxies()) {
      if (sim_.Chance(sim_.faults.engine_kill)) world_.KillEngine(*proxy);
      if (!proxy->engine().up() && Below(5) == 0) world_.StartEngine(*proxy);
      if (sim_.Chance(sim_.faults.vanish)) proxy->engine().Vanish();
      if (sim_.Chance(sim_.faults.look_fails))
        proxy->LoseSight(1 + static_cast<int64_t>(Below(5 * kSecond)),
                         sim_.Chance(sim_.faults.look_ends));
      if (proxy->engine().problem().has_value() && Below(10) == 0) {
        proxy->engine().Mend();
        proxy->EngineChanged();
      }
      if (sim_.plant == Plant::kLockIsNotWritten && proxy->IsLocked()) {
        proxy->Kill(false);
        proxy->Start();
        world_.Partition(member, sim_.now() + 10 * kSecond);
      }
      if (IsOneIn(absl::StrCat("unreadable ", member.value, sim_.now()), sim_.faults.rot))
        proxy->CannotBeRead();
      if (sim_.Chance(sim_.faults.proxy_kill)) proxy->Kill(sim_.Chance(sim_.faults.journal_loss));
      if (sim_.Chance(sim_.faults.direct)) work_.AskDirectly(*proxy);
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

  // Also one that was replaced and does not know it: nobody exchanges a file that is open.
  void EndLeaders() {
    world_.EndZombies();
    world_.KillLeader();
  }

  void Mishap() {
    Prng& prng = mishaps_.prng;
    if (mishaps_.Chance(mishaps_.watch_break)) {
      world_.BreakWatch(static_cast<int64_t>(prng.Below(10 * kSecond)));
    }
    if (mishaps_.Chance(mishaps_.policy_change))
      ChangePolicy(work_.adapters()[prng.Below(work_.adapters().size())]);
    if (mishaps_.Chance(mishaps_.records_loss)) {
      world_.LoseRecords();
      EndLeaders();
    }
    if (mishaps_.records_older > 0 && prng.Below(10) == 0) world_.BackUp(mishaps_.both_older > 0);
    if (mishaps_.Chance(mishaps_.records_older)) {
      world_.RestoreRecords();
      EndLeaders();
    }
    if (mishaps_.store_older > 0 && prng.Below(20) == 0) world_.store().BackUp();
    if (mishaps_.Chance(mishaps_.store_older)) world_.RestoreStore();
    if (mishaps_.Chance(mishaps_.retry)) Retry();
    if (prng.Below(3) == 0) world_.AdoptIfAsked();
    for (const AdapterName& adapter : work_.adapters()) {
      if (IsOneIn(absl::StrCat("retire ", plan_.seed, adapter.value, sim_.now()), mishaps_.retire))
        Retire(adapter);
    }
    for (const AdapterName& adapter : work_.adapters()) pools_.Second(adapter);
    pools_.PublishAtOnce();
    const bool is_small = world_.proxies().size() < kJoinsMost;
    if (mishaps_.Chance(mishaps_.join) && is_small) AddMember(kRollout);
    for (auto& [member, proxy] : world_.proxies()) {
      if (mishaps_.Chance(mishaps_.sleep)) {
        world_.PutToSleep(member, static_cast<int64_t>(prng.Below(15 * kSecond)));
        if (prng.Below(2) == 0) proxy->engine().Vanish();
      }
      if (mishaps_.Chance(mishaps_.move)) Move(*proxy);
      if (IsOneIn(absl::StrCat(plan_.seed, member.value, sim_.now()),
                  mishaps_.Leaves(proxy->engine().IsLoading())))
        Leave(*proxy);
      if (mishaps_.Chance(mishaps_.stop) && proxy->engine().IsLoading()) world_.KillEngine(*proxy);
      const std::string text = absl::StrCat(plan_.seed, " ", member.value, " ", sim_.now());
      if (IsOneIn("framework " + text, mishaps_.framework)) proxy->FrameworkCalls(text);
      if (IsOneIn("releases " + text, mishaps_.release))
        proxy->FrameworkReleases(IsOneIn("long " + text, 300) ? 60 * kSecond : 4 * kSecond);
      if (IsOneIn("updates " + text, mishaps_.release)) proxy->FrameworkUpdates(text);
      proxy->CheckPause();
      proxy->CheckCalls();
      if (mishaps_.bind > 0 && binds_.Chance(mishaps_.bind))
        proxy->Bind(binds_, 1 + static_cast<int64_t>(binds_.Below(8 * kSecond)));
    }
  }

  // As long as the proxy with the planted bug answers nobody reaches it.
  void Leave(SimProxy& proxy) {
    constexpr int64_t kHeardMs = 300;
    int64_t closes_after_ms = 0;
    const auto lasts = [&] {
      return IsOneIn(
          absl::StrCat(plan_.seed, proxy.member().value, "drains", sim_.now(), closes_after_ms),
          700);
    };
    while (closes_after_ms < 8 * kSecond && lasts()) closes_after_ms += kSecond;
    proxy.Drain(closes_after_ms);
    if (sim_.plant != Plant::kGoodbyeComesFirst) return;
    sim_.queue.In(kHeardMs, [this, member = proxy.member()] {
      world_.Partition(member, sim_.now() + 12 * kSecond);
    });
  }

  // Archived, and some seconds later taken back; every other one is deleted before, where engines
  // have let it go.
  void Retire(const AdapterName& adapter) {
    const std::string which = absl::StrCat(plan_.seed, adapter.value, sim_.now());
    int64_t away_ms = 500;
    while (away_ms < 20 * kSecond && IsOneIn(absl::StrCat("away ", which, away_ms), 800))
      away_ms += kSecond;
    world_.store().Archive(adapter);
    sim_.queue.In(away_ms, [this, adapter, deletes = IsOneIn("delete " + which, 500)] {
      if (deletes) world_.store().Delete(adapter);
      world_.store().TakeBack(adapter);
    });
  }

  // `lorry retry`, of a version that some verdict keeps from engines.
  void Retry() {
    if (world_.leader() == nullptr) return;
    const auto verdicts = world_.leader()->machine().GetStatus().verdicts;
    if (verdicts.empty()) return;
    const VersionKey& version = verdicts[mishaps_.prng.Below(verdicts.size())].version;
    const sync::VerdictLifted lift{world_.NewRequest(), version};
    sim_.lives.Lifted(version);
    world_.Call(lift, lift.request);
  }

  // Its proxy is started again, for another pool.
  void Move(SimProxy& proxy) {
    proxy.Kill(false);
    proxy.Move(proxy.pool() == kRollout ? kEval : kRollout);
    proxy.Start();
  }

  // What the machines say of themselves.
  void Look() {
    looks_.AtProxies();
    SimLeader* leader = world_.leader();
    if (leader == nullptr) return;
    const sync::Status status = leader->machine().GetStatus();
    looks_.At(*leader, status);
    for (const sync::PoolStatus& pool : status.pools) {
      const bool is_barred =
          pool.phase == sync::SyncPhase::kHolding || pool.phase == sync::SyncPhase::kLocking;
      if (is_barred && mishaps_.Chance(mishaps_.meddle)) Meddle(pool.adapter, pool.pool);
    }
  }

  // What ends a barrier before its decision, each a row of docs/machines.md.
  void Meddle(const AdapterName& adapter, const PoolName& pool) {
    switch (mishaps_.prng.Below(4)) {
      case 0:
        world_.store().OpenRun(adapter);
        return;
      case 1:
        return ChangePolicy(adapter);
      case 2:
        return work_.Override(adapter);
      default:
        for (auto& [member, proxy] : world_.proxies()) {
          if (proxy->pool() == pool && mishaps_.prng.Below(2) == 0) world_.KillEngine(*proxy);
        }
    }
  }

  void ChangePolicy(const AdapterName& adapter) {
    fleet::AdapterPolicy policy = DrawPolicy(mishaps_.prng);
    policy.pools = world_.store().adapters().at(adapter).policy.pools;
    if (mishaps_.Chance(mishaps_.pool_leaves)) TakeOut(policy, kEval);
    DrawMode(policy);
    DrawResidency(policy);
    world_.store().SetAdapter(adapter, policy);
  }

  // No more faults, everything is started again, operators lift what they imposed.
  void Heal() {
    if (Violated()) return;
    sim_.faults = Faults();
    world_.EndZombies();
    if (world_.leader() == nullptr) world_.StartLeader();
    world_.RunFor(kSecond);  // it has read the store
    for (auto& [member, proxy] : world_.proxies()) {
      if (proxy->engine().base_model().hidden_size != 1) world_.KillEngine(*proxy);
      proxy->engine().Mend();
      world_.StartEngine(*proxy);
      proxy->Start();
      sync::MemberMarked mark{world_.NewRequest(), member, sync::MemberMark::kIncluded, ""};
      world_.Mark(mark);
    }
    for (const AdapterName& adapter : work_.adapters()) {
      world_.store().TakeBack(adapter);
      pools_.Settle(adapter, kRollout);
      sync::OverrideSet lift{world_.NewRequest(), adapter, kRollout, std::nullopt};
      world_.Call(lift, lift.request);
      // Some aliases stay; some clients want to keep what they have.
      if (Below(2) == 0) world_.store().SetAlias(adapter, AliasName("eval"), std::nullopt);
      if (Below(3) == 0) work_.LeaseForLong(adapter);
    }
    // Requests and loads that began under faults may still take their minute.
    for (int i = 0; i < 14 && !Violated(); ++i) {
      Supervise();
      world_.AdoptIfAsked();
      pools_.LiftPins();
      world_.RunFor(5 * kSecond);
    }
    // 12: under endless publishing some version is decided.
    const uint64_t before = sim_.oracle.commits();
    // Few seeds go on to where names wait in dozens to be unloaded; the others have seen enough
    // after some decisions.
    const uint64_t enough = Below(16) == 0 ? kEndlessPublishes : 3 * work_.adapters().size();
    for (int i = 0; i < kEndlessPublishes && !Violated(); ++i) {
      if (sim_.oracle.commits() - before >= enough) break;
      for (const AdapterName& adapter : work_.adapters())
        world_.store().Publish(adapter, std::nullopt);
      Supervise();
      world_.RunFor(kSecond / 2);
    }
    if (!Violated() && sim_.oracle.commits() == before && !SaysWhyNothingMoves(world_)) {
      sim_.oracle.Violate(12, "nothing was decided under endless publishing");
    }
    if (!Violated()) pools_.LetGoOnce(kRollout);
  }

  // 13: every live member reaches what is desired, or says why not.
  void Demand() {
    for (int i = 0; i < 40 && !Violated(); ++i) {
      Supervise();
      world_.RunFor(5 * kSecond);
      if (!WhyUnsettled(world_, kRollout).empty()) continue;
      AskForAll(world_, kDemandWaitMs);
      if (mishaps_.release > 0) AskForOwn(world_);
      if (mishaps_.full > 0 && !Violated()) AskForRoom();
      return;
    }
    if (!Violated()) sim_.oracle.Violate(13, WhyUnsettled(world_, kRollout));
  }

  // 13: a framework that pauses an engine full of another fleet's names gets room for its own, though
  // its proxy has just begun.
  void AskForRoom() {
    constexpr int64_t kSeenMs = 1'100;  // by then
    constexpr int64_t kGetsRoomMs = 10'000;
    int64_t paused_after_ms = kSeenMs;
    for (auto& [member, proxy] : world_.proxies()) {
      proxy->BeginOnFullEngine(paused_after_ms);
      paused_after_ms = kSeenMs + (paused_after_ms + plan_.seed) % (4 * kSecond);
    }
    world_.RunFor(kSeenMs + 4 * kSecond + kGetsRoomMs);
    for (auto& [member, proxy] : world_.proxies()) {
      const std::string why = proxy->WhyNoRoom();
      if (!why.empty() && !Violated()) sim_.oracle.Violate(13, why);
    }
  }

  // Engines that died of what was published before are started again, and proxies that drained, as
  // by anyone's supervisor.
  void Supervise() {
    for (auto& [member, proxy] : world_.proxies()) {
      if (!proxy->engine().up()) world_.StartEngine(*proxy);
      if (!proxy->alive()) proxy->Start();
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
    result.coverage = sim_.coverage;
    if (world_.leader() != nullptr) result.coverage.Add(world_.leader()->machine().rows_taken());
    for (const auto& [member, proxy] : world_.proxies()) {
      if (proxy->alive()) result.coverage.Add(proxy->machine().rows_taken());
    }
    return result;
  }

  const Plan plan_;
  World world_;
  Sim& sim_;
  Mishaps mishaps_;
  Prng binds_;  // of its own, so that other seeds stay what they are
  Work work_;
  Pools pools_;
  Looks looks_{world_};
  uint32_t slots_ = 0;
};

}  // namespace

Result RunSeed(const Plan& plan) { return Run(plan).Do(); }

}  // namespace lorry::sim
