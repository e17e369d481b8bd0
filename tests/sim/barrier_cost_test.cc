// What a barrier costs those who wait at a door: network round trips and writes to a disk, one after
// the other, from the moment that the door admits nothing until it admits again. Both machines run
// as they do in their processes, and a clock that nothing else moves counts: a message takes a
// second, a transaction 20 ms, and everything else a millisecond or two.
#include <optional>

#include "gtest/gtest.h"
#include "tests/sim/world.h"

namespace lorry::sim {
namespace {

const AdapterName kMath("math");
constexpr int64_t kMessageMs = 1'000;
constexpr int64_t kWriteMs = 20;
constexpr int64_t kRoundTrips = 2;  // HELD and LOCK, LOCKED and the decision
constexpr int64_t kWrites = 3;      // LOCKED, the decision, the row that follows it

class BarrierCost : public ::testing::Test {
 protected:
  void Begin(int members) {
    fleet::AdapterPolicy policy;
    policy.mode = fleet::SyncMode::kBarrier;
    policy.stage_deadline_ms = 120'000;
    world_.emplace(1);
    world_->sim().faults.delay_ms = 1;
    world_->store().SetAdapter(kMath, policy);
    world_->store().OpenRun(kMath);
    world_->StartLeader();
    for (int i = 1; i <= members; ++i)
      world_->AddMember("e" + std::to_string(i), fleet::EngineKind::kVllm, 0);
    Decide(1);
  }
  bool Serves(const SimProxy& proxy, uint64_t epoch) const {
    const fleet::ObservedRow row = RowOf(proxy);
    return row.mode == fleet::RowMode::kOpen && row.epoch.value >= epoch;
  }
  fleet::ObservedRow RowOf(const SimProxy& proxy) const {
    const std::vector<fleet::ObservedRow> rows = proxy.machine().Observe().rows;
    return rows.empty() ? fleet::ObservedRow() : rows.front();
  }
  // Publishes, and returns for how long each door admitted nothing until it served the epoch.
  std::map<MemberId, int64_t> Decide(uint64_t epoch) {
    std::map<MemberId, int64_t> shut;
    world_->store().Publish(kMath, std::nullopt);
    size_t serving = 0;
    for (int64_t ms = 0; ms < 100'000 && serving < world_->proxies().size(); ++ms) {
      world_->RunFor(1);
      serving = 0;
      for (const auto& [member, proxy] : world_->proxies()) {
        const bool is_answered = !proxy->Request({{kMath.value}, 1, 1}).served.empty();
        if (!is_answered) ++shut[member];
        if (is_answered && Serves(*proxy, epoch)) ++serving;
      }
    }
    EXPECT_EQ(serving, world_->proxies().size()) << world_->Describe();
    return shut;
  }

  std::optional<World> world_;
};

TEST_F(BarrierCost, IsTwoRoundTripsAndThreeWrites) {
  for (const int members : {1, 3, 16}) {
    Begin(members);
    world_->sim().faults.message_ms = kMessageMs;
    world_->sim().faults.write_ms = kWriteMs;
    for (const auto& [member, ms] : Decide(2)) {
      EXPECT_EQ(ms / kMessageMs, 2 * kRoundTrips) << member.value << " of " << members;
      EXPECT_EQ(ms % kMessageMs / kWriteMs, kWrites) << member.value << " of " << members;
    }
  }
}

}  // namespace
}  // namespace lorry::sim
