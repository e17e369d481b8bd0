// What the oracle blames nobody for, and what it still does.
#include "tests/sim/oracle.h"

#include <string>

#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/keys.h"

namespace lorry::sim {
namespace {

const AdapterName kMath("math");
const PoolName kRollout("rollout");
const std::string kSync = sync::SyncKey(kMath, kRollout).text;
const std::string kPool = sync::PoolKey(kMath, kRollout).text;
const std::string kDecision = sync::DecisionKey(kMath, kRollout).text;

VersionKey Version(uint64_t number) { return {kMath, RunId(1), VersionNumber(number)}; }

class OracleTest : public ::testing::Test {
 protected:
  static sync::SyncRecord SyncOf(uint64_t epoch, const VersionKey& version) {
    sync::SyncRecord sync;
    sync.epoch = Epoch(epoch);
    sync.version.key = version;
    return sync;
  }
  void Decide(uint64_t epoch, const VersionKey& version, bool commit) {
    oracle_.Durable(term_, {kSync, SyncOf(epoch, version)});
    oracle_.Durable(term_, {kDecision, sync::DecisionRecord{Epoch(epoch), version, commit}});
  }
  void Commit(uint64_t epoch, const VersionKey& version) { Decide(epoch, version, true); }
  void Erase(const std::string& key) { oracle_.Durable(term_, {key, std::nullopt}); }
  void Open(uint64_t epoch, const VersionKey& version) {
    oracle_.RowOpened(JournalId("j"), term_.incarnation, kMath, kRollout, Epoch(epoch), version);
  }
  static sync::PoolRecord Serving(uint64_t epoch, const VersionKey& version) {
    sync::PoolRecord pool{.epoch = Epoch(epoch)};
    pool.history.push_back({Epoch(epoch), {.key = version}});
    return pool;
  }
  std::string Violation() const { return oracle_.violated() ? oracle_.violation() : ""; }

  Tick now_ = 0;
  std::function<Tick()> clock_ = [this] { return now_; };
  Oracle oracle_{clock_};
  Term term_{1, 1};
};

TEST_F(OracleTest, WhatAPoolServesMustStayStored) {
  Commit(1, Version(1));
  oracle_.Deleted(Version(1));
  EXPECT_NE(Violation(), "");
}

TEST_F(OracleTest, WhatWasDecidedBeforeItsLeaderHeardThatTheAdapterWasGoneIsForgottenWithThat) {
  oracle_.AdapterDeleted(kMath, std::nullopt);
  Commit(1, Version(1));
  Erase(kDecision);
  oracle_.Deleted(Version(1));
  EXPECT_EQ(Violation(), "");
}

TEST_F(OracleTest, ADecisionOfAnAdapterThatWasNeverGoneIsNotForgotten) {
  Commit(1, Version(1));
  Erase(kDecision);
  oracle_.Deleted(Version(1));
  EXPECT_NE(Violation(), "");
}

class OlderRecords : public OracleTest {
 protected:
  // A backup is restored of while epoch 1 was being synced.
  OlderRecords() {
    oracle_.Durable(term_, {"meta", sync::MetaRecord{term_, sync::Worth::kSettled, {}}});
    backup_ = {{kSync, SyncOf(1, Version(1))}};
    Decide(1, Version(1), false);
  }

  sync::Records backup_;
};

TEST_F(OlderRecords, AreNotTakenForTheLatestByAStoreThatKnowsOfLaterOnes) {
  oracle_.RecordsLost(/*is_remembered=*/true, backup_);
  Commit(1, Version(1));
  EXPECT_NE(Violation(), "");
}

TEST_F(OlderRecords, DecideAnewWhatTheyWereSyncingWhereTheStoreKnowsOfNone) {
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  Commit(1, Version(1));
  EXPECT_EQ(Violation(), "");
}

TEST_F(OlderRecords, OfAnEarlierIncarnationDecideAnewLikewise) {
  backup_["meta"] = sync::MetaRecord{term_, sync::Worth::kSettled, {}};
  const Term adopted{term_.incarnation + 1, 1};
  oracle_.Durable(adopted, {"meta", sync::MetaRecord{adopted, sync::Worth::kSettled, {}}});
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  Commit(1, Version(1));
  EXPECT_EQ(Violation(), "");
}

TEST_F(OlderRecords, DecideAnewOnceTheStoreIsAnOlderOneToo) {
  oracle_.RecordsLost(/*is_remembered=*/true, backup_);
  oracle_.StoreForgot(/*still_knows=*/false, {}, backup_);
  Commit(1, Version(1));
  EXPECT_EQ(Violation(), "");
}

TEST_F(OlderRecords, LeaveStandingWhatDoorsWereTold) {
  Decide(2, Version(2), true);
  backup_[kPool] = sync::PoolRecord{.epoch = Epoch(1)};
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  Open(2, Version(2));
  EXPECT_EQ(Violation(), "") << "no leader has heard of it yet";
  Decide(2, Version(3), true);
  Open(2, Version(3));
  EXPECT_EQ(Violation(), "") << "the epoch is given out again";
  Open(2, Version(4));
  EXPECT_NE(Violation(), "");
}

TEST_F(OlderRecords, MakeNoDoorLateThatFollowsWhatItWasTold) {
  Decide(2, Version(2), true);
  Decide(3, Version(3), true);
  backup_[kPool] = sync::PoolRecord{.epoch = Epoch(2)};
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  oracle_.ServedLatest(term_.incarnation, kRollout, Epoch(3), Version(3), 0);
  EXPECT_EQ(Violation(), "");
  oracle_.ServedLatest(term_.incarnation, kRollout, Epoch(3), Version(2), 0);
  EXPECT_NE(Violation(), "");
}

TEST_F(OlderRecords, AdoptWhatADoorWasTold) {
  Decide(2, Version(2), true);
  backup_[kPool] = sync::PoolRecord{.epoch = Epoch(1)};
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  oracle_.Durable({2, 1}, {kPool, Serving(2, Version(2))});
  EXPECT_EQ(Violation(), "");
}

TEST_F(OlderRecords, AdoptItForNoPoolThatNoPolicyHas) {
  for (const bool has_pool : {false, true}) {
    Oracle oracle(clock_);
    oracle.Durable(term_, {"meta", sync::MetaRecord{term_, sync::Worth::kSettled, {}}});
    oracle.Durable(term_, {kDecision, sync::DecisionRecord{Epoch(2), Version(2), true}});
    oracle.RecordsLost(/*is_remembered=*/false, {{kPool, sync::PoolRecord{.epoch = Epoch(1)}}});
    oracle.PolicyHas(kMath, has_pool ? std::map<PoolName, fleet::PoolSource>{{kRollout, {}}}
                                     : std::map<PoolName, fleet::PoolSource>{});
    oracle.Durable({2, 1}, {kPool, Serving(2, Version(2))});
    oracle.Deleted(Version(2));
    EXPECT_EQ(oracle.violated(), has_pool);
  }
}

TEST_F(OlderRecords, AdoptNothingThatNobodyDecided) {
  backup_[kPool] = sync::PoolRecord{.epoch = Epoch(1)};
  oracle_.RecordsLost(/*is_remembered=*/false, backup_);
  oracle_.Durable({2, 1}, {kPool, Serving(2, Version(2))});
  EXPECT_NE(Violation(), "");
}

TEST_F(OlderRecords, AreNotTakenForTheLatestByAStoreThatIsOlderAndKnowsOfLaterOnes) {
  oracle_.RecordsLost(/*is_remembered=*/true, backup_);
  oracle_.StoreForgot(/*still_knows=*/true, {}, backup_);
  Commit(1, Version(1));
  EXPECT_NE(Violation(), "");
}

}  // namespace
}  // namespace lorry::sim
