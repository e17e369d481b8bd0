#include "services/sync_orchestrator/driver/orchestrator.h"

#include "gtest/gtest.h"
#include "lib/kv/memory_store.h"

namespace lorry::sync {
namespace {

constexpr Tick kPatienceMs = 10'000;

class SilentStore final : public HoldsPort {
  void SetHolds(HoldsMark, std::vector<VersionKey>) override {}
};

class SilentProxy final : public MemberSession {
  void SendDesired(const fleet::Desired&) override {}
  void End(const absl::Status&) override {}
};

class OrchestratorTest : public testing::Test {
 protected:
  OrchestratorTest() {
    orchestrator_->Connect(holds_, observer_);
    orchestrator_->Start();
  }
  std::shared_ptr<const Status> Ask() { return *orchestrator_->GetStatus(kPatienceMs); }

  std::unique_ptr<kv::Store> store_ = kv::MakeMemoryStore();
  ManualClock clock_;
  SilentStore holds_;
  SyncObserver observer_{{}};
  std::unique_ptr<Orchestrator> orchestrator_ = *Orchestrator::Create(*store_, clock_, {});
};

TEST_F(OrchestratorTest, ShowsAllWhoAskBetweenTwoEventsTheSameSnapshot) {
  const auto first = Ask();
  EXPECT_EQ(Ask(), first);
  fleet::Observed observed;
  observed.journal = JournalId("j");
  ASSERT_TRUE(orchestrator_
                  ->OpenSession(MemberId("e1"), PoolName("rollout"), observed, Contact(),
                                std::make_shared<SilentProxy>())
                  .ok());
  const auto second = Ask();
  EXPECT_TRUE(first->members.empty());
  EXPECT_EQ(second->members.size(), 1U);
}

TEST_F(OrchestratorTest, KeepsNoSnapshotThatNobodyReads) {
  const std::weak_ptr<const Status> snapshot = Ask();
  Ask();  // the thread that made the first is done with it
  EXPECT_TRUE(snapshot.expired());
}

}  // namespace
}  // namespace lorry::sync
