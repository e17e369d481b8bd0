// Adapters that are deleted or archived: nothing is kept of them, and epochs of their names are
// never given out again.
#include <malloc.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using fleet::RowMode;

// One engine, and a door of another that is away.
class Gone : public ::testing::Test {
 protected:
  Gone() { fleet_.Join("e1"); }

  VersionKey Serve(uint64_t number) {
    const VersionKey key = fleet_.Publish(number);
    for (int round = 0; round < 3; ++round) fleet_.Obey("e1");
    EXPECT_EQ(fleet_.Committed(), number);
    return key;
  }
  Epoch Decided() const { return fleet_.Pool().committed->epoch; }
  void Delete() {
    fleet_.Step(AdapterDeleted{kMath});
    const std::vector<VersionInfo> versions = fleet_.versions_;
    for (const VersionInfo& version : versions) fleet_.Delete(version.key);
    fleet_.Obey("e1");
  }
  void CreateAgain() { fleet_.NewRun(); }
  void Leave(const std::string& id) { fleet_.Step(SessionLost{fleet_.SessionOf(MemberId(id))}); }
  // Keys of what is written down of adapters.
  std::vector<std::string> OfAdapters() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : fleet_.records_) {
      if (key.find("/math") != std::string::npos) keys.push_back(key);
    }
    return keys;
  }

  Fleet fleet_;
};

TEST_F(Gone, NothingIsKeptOfIt) {
  const VersionKey first = Serve(1);
  fleet_.Override(first, "pin");
  Serve(2 - 1);
  ASSERT_FALSE(OfAdapters().empty());
  Delete();
  EXPECT_THAT(OfAdapters(), testing::IsEmpty());
  EXPECT_THAT(fleet_.Status().pools, testing::IsEmpty());
  EXPECT_THAT(fleet_.holds_.back(), testing::IsEmpty());
}

TEST_F(Gone, NorOfASyncThatRuns) {
  Serve(1);
  fleet_.Publish(2);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  Delete();
  EXPECT_THAT(OfAdapters(), testing::IsEmpty());
}

// The pool alone, which another policy may have again.
TEST_F(Gone, TheStoreKeepsNothingForAPoolThatNoPolicyHas) {
  const VersionKey first = Serve(1);
  fleet_.Override(first, "pin");
  const VersionKey waits = fleet_.Publish(2);
  ASSERT_TRUE(fleet_.Holds(first) && fleet_.Holds(waits));
  const fleet::AdapterPolicy before = fleet_.adapter_.policy;
  fleet::AdapterPolicy without = before;
  without.pools = {{PoolName("eval"), {fleet::PoolSource::Kind::kAlias, {}, AliasName("best")}}};
  fleet_.Policy(without);
  EXPECT_THAT(fleet_.holds_.back(), testing::IsEmpty());
  fleet_.Policy(before);
  EXPECT_TRUE(fleet_.Holds(first) && fleet_.Holds(waits));
}

TEST_F(Gone, EpochsOfItsNameAreNotGivenOutAgain) {
  Serve(1);
  fleet_.Publish(2);  // whose epoch is given out, and not decided
  const Epoch before = fleet_.Pool().sync->epoch;
  Delete();
  CreateAgain();
  Serve(3);
  EXPECT_GT(Decided(), before);
}

TEST_F(Gone, NorByTheNextReign) {
  Serve(1);
  Serve(2);
  const Epoch before = Decided();
  Delete();
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  CreateAgain();
  Serve(3);
  EXPECT_GT(Decided(), before);
}

TEST_F(Gone, NorWhereNobodyLedWhenItWent) {
  Serve(1);
  Serve(2);
  const Epoch before = Decided();
  fleet_.versions_.clear();
  fleet_.Restart();
  fleet_.Step(StoreListed{{}, {}, {}, fleet_.remembered_});
  EXPECT_THAT(OfAdapters(), testing::IsEmpty());
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  CreateAgain();
  Serve(3);
  EXPECT_GT(Decided(), before);
}

TEST_F(Gone, NorOnceAnOverrideWasWrittenDownBeforeAnythingElse) {
  Serve(1);
  Serve(2);
  const Epoch before = Decided();
  Delete();
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  CreateAgain();
  ASSERT_TRUE(fleet_.Override(std::nullopt, "lift").status.ok());
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  Serve(3);
  EXPECT_GT(Decided(), before);
}

// Its versions are gone, and those of another of its name are no successors of theirs.
TEST_F(Gone, NoDoorThatWasAwayGoesOnWithIt) {
  fleet_.Join("e2");
  fleet_.Publish(1);
  for (int round = 0; round < 3; ++round) {
    fleet_.Obey("e1");
    fleet_.Obey("e2");
  }
  const fleet::ObservedRow old = fleet_.Of("e2").rows.at(0);
  ASSERT_EQ(old.mode, RowMode::kOpen);
  const Term term = fleet_.DesiredTerm("e2");
  Leave("e2");
  fleet_.Pass(fleet_.config_.lost_after_ms);
  Delete();
  CreateAgain();
  fleet_.Rejoin("e2", term);
  ASSERT_EQ(fleet_.Status().footing, Footing::kSettled) << "its row is no later decision";
  EXPECT_EQ(fleet_.Row("e2").mode, RowMode::kClosed);
  EXPECT_GT(fleet_.Row("e2").epoch, old.epoch) << "which closes it";
  Leave("e2");
  fleet_.Pass(fleet_.config_.lost_after_ms);
  Serve(2);
  fleet_.Rejoin("e2", term);
  EXPECT_EQ(fleet_.Row("e2").mode, RowMode::kOpen);
  EXPECT_GT(fleet_.Row("e2").serve_from, old.epoch) << "until it has what is decided it closes";
  EXPECT_EQ(fleet_.Row("e1").serve_from, Epoch()) << "others need not wait for a word";
  for (int round = 0; round < 2; ++round) fleet_.Obey("e2");
  EXPECT_EQ(fleet_.Row("e2").serve_from, Epoch()) << "nor does it, from then on";
}

TEST_F(Gone, NorWithWhatAnEarlierIncarnationDecided) {
  fleet_.Join("e2");
  fleet_.Publish(1);
  for (int round = 0; round < 3; ++round) {
    fleet_.Obey("e1");
    fleet_.Obey("e2");
  }
  const Term term = fleet_.DesiredTerm("e2");
  Leave("e2");
  fleet_.Pass(fleet_.config_.lost_after_ms);
  Delete();
  fleet_.remembered_->revision.value += 100;
  fleet_.Step(StoreListed{{}, {}, {}, fleet_.remembered_});
  ASSERT_EQ(fleet_.Status().footing, Footing::kRecordsLost);
  fleet_.Pass(2 * fleet_.config_.lost_after_ms);
  ASSERT_TRUE(fleet_.Adopt(true).status.ok()) << fleet_.replies_.back().status;
  CreateAgain();
  fleet_.Obey("e1");
  Serve(2);
  fleet_.Rejoin("e2", term);
  EXPECT_GT(fleet_.Row("e2").serve_from, Epoch());
  EXPECT_EQ(fleet_.Row("e1").serve_from, Epoch());
}

TEST_F(Gone, ALaterDecisionThanTheRecordsKnowIsStillNoticed) {
  Serve(1);
  Delete();
  fleet_.Of("e1").rows = {{.adapter = kMath,
                           .mode = RowMode::kOpen,
                           .incarnation = fleet_.DesiredTerm("e1").incarnation,
                           .epoch = Epoch(1'000)}};
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(fleet_.Status().footing, Footing::kRecordsLost);
}

// Whoever may be trying a version of it, and has lost its session, was not told that it must not.
TEST_F(Gone, ATryIsNotOverBeforeItsMemberHasHeardOfIt) {
  const VersionKey first = fleet_.Publish(1);
  fleet_.Set("e1", first, fleet::ResidencyState::kFetched);
  ASSERT_TRUE(fleet_.MayLoad("e1", 1));
  const auto is_tried = [&] {
    for (const auto& [key, value] : fleet_.records_) {
      const auto* verdict = std::get_if<VerdictRecord>(&value);
      if (verdict == nullptr) continue;
      for (const auto& [group, its] : verdict->groups) {
        if (its.leave.contains(MemberId("e1"))) return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(is_tried());
  Leave("e1");
  fleet_.Step(AdapterDeleted{kMath});  // archived: its versions stay
  fleet_.Pass(1'000);
  EXPECT_TRUE(is_tried());
  fleet_.Pass(fleet_.config_.lost_after_ms);  // it is LOST
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_TRUE(is_tried());
  fleet_.Report("e1");
  EXPECT_FALSE(is_tried());
}

// It may be there again, with all that was decided of it.
TEST_F(Gone, WhatALostStoreHasForgottenIsNot) {
  Serve(1);
  const std::vector<std::string> before = OfAdapters();
  const Epoch decided = Decided();
  fleet_.Step(StoreListed{{}, {}, {}, std::nullopt});
  ASSERT_EQ(fleet_.Status().footing, Footing::kStoreLost);
  EXPECT_EQ(OfAdapters(), before);
  fleet_.List();
  ASSERT_EQ(fleet_.Status().footing, Footing::kSettled);
  EXPECT_EQ(OfAdapters(), before);
  EXPECT_EQ(fleet_.Committed(), 1u);
  EXPECT_EQ(Decided(), decided);
}

// A member that is away keeps nothing of it either, and there are no others of the pool.
TEST_F(Gone, AsManyAsComeAndGoAreForgotten) {
  fleet_.Join("e2");
  Leave("e2");
  fleet_.Pass(fleet_.config_.lost_after_ms);
  const auto live_and_die = [&](int times) {
    for (int i = 0; i < times; ++i) {
      CreateAgain();
      Serve(fleet_.adapter_.current_run.value);
      Delete();
      fleet_.said_.clear();
      fleet_.holds_.clear();
    }
  };
  live_and_die(50);
  const size_t records = fleet_.records_.size();
  const size_t bytes = mallinfo2().uordblks;
  live_and_die(1'000);
  EXPECT_EQ(fleet_.records_.size(), records);
  constexpr size_t kLittle = 32 * 1024;  // a record a round would be hundreds of bytes
  EXPECT_LT(mallinfo2().uordblks, bytes + kLittle);
}

}  // namespace
}  // namespace lorry::sync
