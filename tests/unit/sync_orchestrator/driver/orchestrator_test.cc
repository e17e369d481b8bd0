#include "services/sync_orchestrator/driver/orchestrator.h"

#include <algorithm>

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

// Each pool's record holds its last 64 decisions, and one turn may write all of them: after an
// absence, a new version of each is there at once.
TEST(Orchestrator, OneTurnWritesTheFullRecordsOfManyPools) {
  const auto store = kv::MakeMemoryStore();
  const auto version = [](const AdapterName& adapter, uint64_t number) {
    return VersionInfo{{adapter, RunId(1), VersionNumber(number)}, Digest{std::string(64, 'd')}};
  };
  const auto put = [&](const std::string& key, const RecordValue& value) {
    ASSERT_TRUE(store->Commit(kv::Transaction().Put("orchestrator/" + key, Encode(value))).ok());
  };
  put("meta", MetaRecord{Term{1, 1}, Worth::kSettled});
  StoreListed listed;
  for (int i = 0; i < 60; ++i) {
    const AdapterName adapter("adapter-" + std::to_string(i));
    PoolRecord pool;
    for (uint64_t number = 1; number <= 64; ++number)
      pool.history.push_back({Epoch(number), version(adapter, number)});
    pool.epoch = pool.history.back().epoch;
    pool.considered = pool.history.back().version.key;
    put("pool/" + adapter.value + "/rollout", pool);
    listed.adapters.push_back({adapter, {}, RunId(1)});
    listed.versions.push_back(version(adapter, 65));
  }
  absl::Status fatal;
  ManualClock clock;
  SilentStore holds;
  SyncObserver observer{{}};
  const auto orchestrator = *Orchestrator::Create(
      *store, clock, {.machine = {}, .on_fatal = [&](const absl::Status& why) { fatal = why; }});
  orchestrator->Connect(holds, observer);
  orchestrator->Start();
  orchestrator->PostAnswer(listed);
  const auto status = orchestrator->GetStatus(kPatienceMs);
  orchestrator->Stop();
  ASSERT_TRUE(fatal.ok()) << fatal;
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ((*status)->pools.size(), 60U);
  EXPECT_TRUE(std::ranges::none_of((*status)->pools, [](const PoolStatus& pool) {
    return pool.pending.empty();
  })) << "each waits for its new version";
}

}  // namespace
}  // namespace lorry::sync
