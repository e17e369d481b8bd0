// What one publish makes the machine look at, as counts: time would say more of the computer.
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/keys.h"
#include "tests/bench/machine/fleet.h"

namespace lorry::sync {
namespace {

struct Looked {
  uint64_t parts, members, events;
};

Looked ForOnePublish(size_t engines, size_t adapters) {
  BenchFleet fleet(engines, adapters);
  fleet.Publish(0);
  fleet.TakeSpent();
  const Work before = fleet.machine().work();
  const WatchEvent told = fleet.Publish(0);
  EXPECT_EQ(told.state, WatchEvent::State::kActive);
  EXPECT_EQ(told.done, engines);
  const Work after = fleet.machine().work();
  return {after.parts - before.parts, after.members - before.members, fleet.TakeSpent().events};
}

TEST(Work, GrowsWithTheEnginesAndNotWithTheirSquare) {
  const Looked few = ForOnePublish(50, 3);
  const Looked many = ForOnePublish(400, 3);
  EXPECT_LE(many.parts, 9 * few.parts);
  EXPECT_LE(many.members, 9 * few.members);
  EXPECT_LE(many.events, 9 * few.events);
}

TEST(Work, DoesNotGrowWithAdaptersThatDoNothing) {
  const Looked few = ForOnePublish(50, 2);
  const Looked many = ForOnePublish(50, 40);
  EXPECT_EQ(many.parts, few.parts);
  EXPECT_EQ(many.members, few.members);
}

// Engines that have attached and have nothing of the version that they should serve, nor does any
// verdict say whether they take it.
class ColdFleet {
 public:
  ColdFleet(size_t engines, fleet::Observed observed) : observed_(engines, std::move(observed)) {
    const AdapterName adapter("policy");
    const VersionInfo version{{adapter, RunId(1), VersionNumber(1)}, Digest{"sha256:1"}};
    const PoolName pool("rollout");
    Records records;
    records[MetaKey().text] = MetaRecord{Term{1, 1}, Worth::kSettled};
    records[PoolKey(adapter, pool).text] =
        PoolRecord{.epoch = Epoch(1), .history = {{Epoch(1), version}}, .considered = version.key};
    for (size_t i = 0; i < engines; ++i)
      records[MemberKey(Name(i)).text] = MemberRecord{.pool = pool, .journal = JournalId("j")};
    machine_.emplace(*Machine::Restore({}, records, 0));
    machine_->Step(0, StoreListed{{{adapter, {}, RunId(1)}}, {version}, {}});
    for (size_t i = 0; i < engines; ++i)
      machine_->Step(0, SessionOpened{i + 1, Name(i), pool, observed_[i]});
    machine_->TakeReady();
  }

  // Members that are looked at while each says something of itself.
  uint64_t LookedAtInAReport(void (*change)(fleet::Observed&)) {
    const uint64_t before = machine_->work().members;
    for (size_t i = 0; i < observed_.size(); ++i) {
      ++observed_[i].sequence;
      change(observed_[i]);
      machine_->Step(0, MemberObserved{i + 1, observed_[i]});
    }
    EXPECT_EQ(machine_->CheckDerived(), "");
    return machine_->work().members - before;
  }

 private:
  static MemberId Name(size_t i) { return MemberId(absl::StrCat("engine-", 1'000 + i)); }

  std::vector<fleet::Observed> observed_;
  std::optional<Machine> machine_;
};

fleet::Observed Attaching() {
  fleet::Observed observed;
  observed.journal = JournalId("j");
  observed.limits = {.kind = fleet::EngineKind::kSglang, .rank_limit = 64, .slots = 8};
  return observed;
}

TEST(Work, OfAFleetWhereNobodyCanTryAVersionIsThatOfThoseThatReport) {
  const auto say_more = [](fleet::Observed& o) { o.health_detail = "loads its weights"; };
  const uint64_t few = ColdFleet(50, Attaching()).LookedAtInAReport(say_more);
  EXPECT_LE(ColdFleet(400, Attaching()).LookedAtInAReport(say_more), 9 * few);
}

TEST(Work, OfAYoungReignIsThatOfThoseThatAnswerIt) {
  fleet::Observed observed = Attaching();
  observed.boot = BootId("b");
  observed.health = fleet::MemberHealth::kReady;
  observed.term = Term{1, 1};  // an earlier leader may have told any of them to try
  const auto answer = [](fleet::Observed& o) { o.term = Term{1, 2}; };
  const uint64_t few = ColdFleet(50, observed).LookedAtInAReport(answer);
  EXPECT_LE(ColdFleet(400, observed).LookedAtInAReport(answer), 9 * few);
}

}  // namespace
}  // namespace lorry::sync
