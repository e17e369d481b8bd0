// What the orchestrator remembers of the fleet against what the store and the members do: lost
// records, a lost store, and what is adopted.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/error.h"
#include "tests/unit/sync_orchestrator/machine/fleet_dsl.h"

namespace lorry::sync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One engine that serves v1, and what is lost of it.
class Lost : public ::testing::Test {
 protected:
  Lost() {
    fleet_.Join("e1");
    first_ = fleet_.Publish(1);
    Settle();
    EXPECT_EQ(fleet_.Committed(), 1u);
  }
  // They load what is staged, and open what is decided.
  void Settle() {
    for (int round = 0; round < 3; ++round) {
      for (const std::string& engine : engines_) fleet_.Obey(engine);
    }
  }
  VersionKey Serve(uint64_t number) {
    const VersionKey key = fleet_.Publish(number);
    Settle();
    EXPECT_EQ(fleet_.Committed(), number);
    return key;
  }
  void Wipe() {
    term_ = fleet_.DesiredTerm("e1");
    fleet_.records_.clear();
    ++fleet_.config_.new_incarnation;  // what a clock would say
    fleet_.Restart();
  }
  void Restore(const Records& backup) {
    term_ = fleet_.DesiredTerm("e1");
    fleet_.records_ = backup;
    fleet_.Restart();
  }
  void Rejoin() {
    fleet_.Rejoin("e1", term_);
    Gather();
  }
  // Until whoever else there may be had the time to attach.
  void Gather() { fleet_.Pass(2 * fleet_.config_.lost_after_ms); }
  Footing Where() const { return fleet_.Status().footing; }

  Fleet fleet_;
  std::vector<std::string> engines_ = {"e1"};
  VersionKey first_;
  Term term_;  // of the reign before
};

TEST_F(Lost, WhomTheStoreHasNeverHeardOfBeginsWhateverIsStored) {
  fleet_.remembered_.reset();
  Wipe();
  EXPECT_EQ(Where(), Footing::kSettled);
  fleet_.Join("e1");
  Settle();
  EXPECT_EQ(fleet_.Committed(), 1u);
}

TEST_F(Lost, WipedRecordsDecideNothingHoweverLongNobodyIsThereToObject) {
  Wipe();
  const size_t held = fleet_.holds_.size();
  fleet_.Publish(2);
  fleet_.Pass(600'000);
  EXPECT_EQ(Where(), Footing::kRecordsLost);
  EXPECT_EQ(fleet_.Pool().waits_for, "RECORDS_LOST");
  EXPECT_THAT(fleet_.Pool().detail, HasSubstr("lorry adopt"));
  EXPECT_EQ(fleet_.holds_.size(), held) << "the store keeps what was named to it";
  const size_t said = fleet_.said_.size();
  Rejoin();
  fleet_.Pass(600'000);
  EXPECT_EQ(fleet_.said_.size(), said) << "nothing is desired, so nothing is unloaded";
  EXPECT_EQ(fleet_.Committed(), 0u);
  fleet_.Restart();
  EXPECT_EQ(Where(), Footing::kRecordsLost) << "nor does another start settle it";
}

TEST_F(Lost, RecordsOfABackupAreKnownByTheSetsThatTheStoreAcceptedSince) {
  const Records backup = fleet_.records_;  // taken while it ran: its term is that of the last reign
  Serve(2);
  Serve(3);
  Restore(backup);
  EXPECT_EQ(Where(), Footing::kRecordsLost);
  const size_t said = fleet_.said_.size();
  Rejoin();
  fleet_.Pass(60'000);
  EXPECT_EQ(fleet_.said_.size(), said);
  EXPECT_TRUE(fleet_.Adopt().status.ok()) << fleet_.replies_.back().status;
  EXPECT_EQ(fleet_.Committed(), 3u) << "what the door serves";
  EXPECT_GT(fleet_.DesiredTerm("e1").incarnation, term_.incarnation);
  Serve(4);
  EXPECT_GT(fleet_.Pool().committed->epoch, Epoch(3));
  fleet_.Restart();
  EXPECT_EQ(Where(), Footing::kSettled) << "the records remember it";
}

TEST_F(Lost, WhatIsLostIsSaidOnceAndThatItIsThereAgain) {
  ASSERT_THAT(fleet_.footings_, IsEmpty()) << "whoever begins has lost nothing";
  Wipe();
  Rejoin();
  EXPECT_THAT(fleet_.footings_, ElementsAre(Footing::kRecordsLost));
  ASSERT_TRUE(fleet_.Adopt().status.ok()) << fleet_.replies_.back().status;
  EXPECT_THAT(fleet_.footings_, ElementsAre(Footing::kRecordsLost, Footing::kSettled));
}

TEST_F(Lost, ADecisionThatChangedNoHoldsIsMissedTooWhereTheBackupLacksIt) {
  Serve(2);
  const Records backup = fleet_.records_;
  fleet_.Override(first_, "");  // v1 is held still
  Settle();
  ASSERT_EQ(fleet_.Committed(), 1u);
  Restore(backup);
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

// The version waits again, so that the same holds are needed; the epoch must not get another end.
TEST_F(Lost, AnAbortIsMissedTooWhereTheBackupLacksIt) {
  fleet_.Publish(2);
  const Records backup = fleet_.records_;
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Pass(fleet_.config_.lost_after_ms);
  ASSERT_EQ(fleet_.Pool().last_decision->why, Abort::kTooFewEngines);
  Restore(backup);
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, RecordsThatAreTheLastGoOn) {
  Serve(2);
  fleet_.Restart();
  EXPECT_EQ(Where(), Footing::kSettled);
  Rejoin();
  Serve(3);
}

TEST_F(Lost, APinThatOnlyAnOlderBackupHasIsNotBelieved) {
  const VersionKey second = Serve(2);
  fleet_.Override(first_, "");
  const Records backup = fleet_.records_;
  fleet_.Override(std::nullopt, "");
  Serve(3);
  Restore(backup);
  Rejoin();
  EXPECT_EQ(fleet_.Pool().override_to, std::nullopt);
  EXPECT_TRUE(fleet_.Adopt().status.ok());
  EXPECT_EQ(fleet_.Committed(), 3u) << ToString(second);
}

TEST_F(Lost, PinsAreAskedForWhereDoorsServeSomethingElseThanTheNewest) {
  Serve(2);
  fleet_.Override(first_, "");
  Settle();
  ASSERT_EQ(fleet_.Committed(), 1u);
  Wipe();
  Rejoin();
  const Reply refused = fleet_.Adopt();
  EXPECT_EQ(ReasonOf(refused.status), "PINS_UNKNOWN");
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("serves math r1.1"));
  EXPECT_EQ(Where(), Footing::kRecordsLost);
  EXPECT_TRUE(fleet_.Override(first_, "").status.ok()) << "an operator remembers";
  EXPECT_TRUE(fleet_.Adopt().status.ok());
  Settle();
  EXPECT_EQ(fleet_.Committed(), 1u);
  EXPECT_EQ(fleet_.Pool().waits_for, "OVERRIDDEN");
}

TEST_F(Lost, WhatIsNotPinnedGoesOnToTheNewestWhereAnOperatorSaysSo) {
  Wipe();
  fleet_.Publish(2);
  Rejoin();
  EXPECT_EQ(ReasonOf(fleet_.Adopt().status), "PINS_UNKNOWN");
  EXPECT_TRUE(fleet_.Adopt(/*newest=*/true).status.ok());
  Settle();
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Lost, WhatWasUnderWayWhenTheBackupWasTakenIsDecidedOnceItIsAdopted) {
  fleet_.Publish(2);
  ASSERT_TRUE(fleet_.Pool().sync.has_value());
  const Records backup = fleet_.records_;
  Settle();
  fleet_.Of("e1").rows[0].target = fleet_.NameOf(first_);  // where the door had not heard of it
  Restore(backup);
  Rejoin();
  ASSERT_TRUE(fleet_.Adopt(/*newest=*/true).status.ok()) << fleet_.replies_.back().status;
  Settle();
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Lost, SoIsWhatWaitedForAnEngine) {
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e1"))});
  fleet_.Pass(fleet_.config_.lost_after_ms);
  fleet_.Publish(2);
  ASSERT_FALSE(fleet_.Pool().sync.has_value());
  const Records backup = fleet_.records_;
  fleet_.Publish(3);
  fleet_.Delete({kMath, RunId(1), VersionNumber(3)});
  Restore(backup);
  ASSERT_EQ(Where(), Footing::kRecordsLost);
  Rejoin();
  ASSERT_TRUE(fleet_.Adopt(/*newest=*/true).status.ok()) << fleet_.replies_.back().status;
  Settle();
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Lost, AMemberThatFollowsALaterReignSaysThatTheRecordsAreLost) {
  fleet_.Restart();
  fleet_.Rejoin("e1", Term{1, 9});
  EXPECT_EQ(Where(), Footing::kRecordsLost);
  EXPECT_TRUE(fleet_.ended_.empty()) << "it stays: what it serves can be adopted";
}

TEST_F(Lost, AMemberThatObeysAnotherReignOfTheSameNumberSaysSoToo) {
  const Records backup = fleet_.records_;
  const auto older = fleet_.remembered_;
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  Settle();
  const Term obeyed = fleet_.DesiredTerm("e1");
  fleet_.remembered_ = older;
  Restore(backup);
  ASSERT_NE(Where(), Footing::kRecordsLost) << "so far nobody knows better";
  fleet_.Rejoin("e1", obeyed);
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, AMemberThatStandsOnALaterDecisionSaysSoToo) {
  fleet_.Of("e1").rows[0].epoch = Epoch(9);
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, AMemberThatMovedSinceTheBackupSpeaksOfThePoolThatItIsIn) {
  fleet_.Of("e1").rows[0].epoch = Epoch(9);
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"), PoolName("eval"));
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, AMemberThatIsHeldStandsOnADecisionToo) {
  fleet_.Of("e1").rows[0].epoch = Epoch(9);
  fleet_.Of("e1").rows[0].mode = fleet::RowMode::kHeld;
  fleet_.Of("e1").rows[0].barrier = Epoch(10);
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, AMemberThatIsLockedForALaterSyncSaysSoToo) {
  fleet_.Of("e1").rows[0].mode = fleet::RowMode::kLocked;
  fleet_.Of("e1").rows[0].barrier = Epoch(9);
  fleet_.Restart();
  fleet_.Rejoin("e1", fleet_.DesiredTerm("e1"));
  EXPECT_EQ(Where(), Footing::kRecordsLost);
}

TEST_F(Lost, AStrangerOfALaterReignIsRefusedAndLosesNothing) {
  fleet::Observed stranger = fleet_.Of("e1");
  stranger.term = Term{9, 9};
  fleet_.Step(SessionOpened{99'999, MemberId("e9"), kRollout, stranger});
  EXPECT_EQ(ReasonOf(fleet_.ended_.back().status), "TERM_FENCED");
  EXPECT_EQ(Where(), Footing::kSettled);
}

TEST_F(Lost, AdoptionMintsAnIncarnationAboveThatOfTheStoreToo) {
  fleet_.remembered_ = HoldsMark{7, Revision(1)};
  Wipe();
  Rejoin();
  EXPECT_TRUE(fleet_.Adopt().status.ok());
  EXPECT_EQ(fleet_.DesiredTerm("e1"), (Term{8, 1}));
  EXPECT_EQ(fleet_.remembered_->incarnation, 8u) << "and its holds are counted in it";
  EXPECT_TRUE(fleet_.Holds(first_));
}

TEST_F(Lost, AdoptionTakesTheLatestIncarnationsDecision) {
  fleet_.Join("e2");
  const VersionKey second = fleet_.Publish(2);
  fleet_.Of("e1").rows = {
      {kMath, fleet::RowMode::kOpen, 1, Epoch(6), fleet_.NameOf(first_), {}, {}}};
  fleet_.Of("e2").rows = {
      {kMath, fleet::RowMode::kLocked, 2, Epoch(3), fleet_.NameOf(second), Epoch(4), {}}};
  Wipe();
  fleet_.Rejoin("e1", Term{1, 9});
  fleet_.Rejoin("e2", Term{2, 1});
  Gather();
  EXPECT_TRUE(fleet_.Adopt().status.ok()) << fleet_.replies_.back().status;
  EXPECT_EQ(fleet_.Committed(), 2u);
}

TEST_F(Lost, ALockedDoorWaitsForWhoeverMayHaveOpenedItsEpoch) {
  fleet_.Join("e2");
  engines_.push_back("e2");
  Serve(2);
  const Records backup = fleet_.records_;
  Serve(3);
  Restore(backup);
  fleet_.Of("e1").rows[0].mode = fleet::RowMode::kLocked;
  Rejoin();
  const Reply refused = fleet_.Adopt(true);
  EXPECT_EQ(ReasonOf(refused.status), "ENGINES_MISSING");
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("may know: e2"));
  fleet_.Rejoin("e2", term_);
  EXPECT_TRUE(fleet_.Adopt(true).status.ok());
}

TEST_F(Lost, ABackupIsNotAdoptedBeforeTheDoorsThatItNamesAreThere) {
  fleet_.Join("e2");
  engines_.push_back("e2");
  const Records backup = fleet_.records_;
  Serve(2);
  Restore(backup);
  fleet_.Rejoin("e1", term_);
  const Reply refused = fleet_.Adopt(true);
  EXPECT_EQ(ReasonOf(refused.status), "ENGINES_MISSING");
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("not attached: e2"));
  fleet_.Rejoin("e2", term_);
  Gather();
  fleet_.Step(SessionLost{fleet_.SessionOf(MemberId("e2"))});
  EXPECT_EQ(ReasonOf(fleet_.Adopt(true).status), "ENGINES_MISSING") << "it is likely to be back";
  fleet_.Pass(fleet_.config_.lost_after_ms);
  EXPECT_TRUE(fleet_.Adopt(true).status.ok()) << fleet_.replies_.back().status;
}

TEST_F(Lost, WipedRecordsAreNotAdoptedBeforeEveryDoorHadTheTimeToAttach) {
  Wipe();
  fleet_.Rejoin("e1", term_);
  const Reply refused = fleet_.Adopt(true);
  EXPECT_EQ(ReasonOf(refused.status), "ENGINES_MISSING");
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("another 10000 ms to attach"));
  fleet_.Pass(2 * fleet_.config_.lost_after_ms - 1);
  EXPECT_EQ(ReasonOf(fleet_.Adopt(true).status), "ENGINES_MISSING");
  fleet_.Pass(1);
  EXPECT_TRUE(fleet_.Adopt(true).status.ok()) << fleet_.replies_.back().status;
}

TEST_F(Lost, LeasesThatAreRenewedMeanwhileArePromisedAgain) {
  const Selector one{kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)};
  Wipe();
  Rejoin();
  fleet_.Step(LeaseAsked{1, one, kRollout, "client", 60'000});
  EXPECT_EQ(ReasonOf(fleet_.replies_.back().status), "HOLD_PENDING");
  fleet_.Pass(120'000);
  EXPECT_EQ(fleet_.Leases().size(), 1u) << "nothing ends before the fleet is adopted";
  EXPECT_TRUE(fleet_.Adopt().status.ok());
}

TEST_F(Lost, WhatIsAdoptedIsDeliveredOnceItIsServed) {
  Wipe();
  fleet_.Step(WatchOpened{1, first_, kRollout});
  Rejoin();
  fleet_.Pass(fleet_.config_.deliver_ms);  // an operator takes his time
  EXPECT_TRUE(fleet_.Adopt().status.ok());
  EXPECT_EQ(fleet_.told_.back().state, WatchEvent::State::kCommitted);
  EXPECT_FALSE(fleet_.told_.back().final);
  Settle();
  EXPECT_EQ(fleet_.told_.back().state, WatchEvent::State::kActive);
  EXPECT_EQ(fleet_.told_.back().done, 1u);
}

TEST_F(Lost, AWatchSaysThatNothingIsDecided) {
  Wipe();
  fleet_.Step(WatchOpened{1, first_, kRollout});
  EXPECT_EQ(fleet_.told_.back().state, WatchEvent::State::kWaiting);
  EXPECT_EQ(fleet_.told_.back().reason, "RECORDS_LOST");
}

TEST_F(Lost, NothingIsAdoptedWhereNothingIsLost) {
  EXPECT_EQ(ReasonOf(fleet_.Adopt(true).status), "NOT_ADOPTABLE");
}

// A store whose data directory is empty, or another's, or older.
class LostStore : public Lost {
 protected:
  void Wipe() {
    whole_ = {fleet_.adapter_, fleet_.remembered_};
    fleet_.remembered_.reset();
    fleet_.Step(StoreListed{{}, {}, {}, std::nullopt});
  }
  std::pair<AdapterInfo, std::optional<HoldsMark>> whole_;
};

TEST_F(LostStore, NothingServedIsTakenAwayWhileTheStoreHasForgottenIt) {
  const size_t held = fleet_.holds_.size();
  const size_t said = fleet_.said_.size();
  Wipe();
  fleet_.Pass(60'000);
  EXPECT_EQ(Where(), Footing::kStoreLost);
  EXPECT_EQ(fleet_.said_.size(), said);
  EXPECT_EQ(fleet_.holds_.size(), held);
  EXPECT_EQ(fleet_.Pool().waits_for, "STORE_LOST");
  EXPECT_EQ(fleet_.Committed(), 1u);
  fleet_.Restart();
  EXPECT_EQ(Where(), Footing::kStoreLost);
}

TEST_F(LostStore, AStoreThatRemembersAgainIsBelieved) {
  const auto remembered = fleet_.remembered_;
  Wipe();
  ASSERT_EQ(Where(), Footing::kStoreLost);
  fleet_.remembered_ = remembered;
  fleet_.List();
  EXPECT_EQ(Where(), Footing::kSettled);
  EXPECT_EQ(fleet_.Pool().waits_for, "");
  Serve(2);
}

TEST_F(LostStore, AnOlderOneIsKnownByTheSetsThatItHadAcknowledged) {
  const auto older = fleet_.remembered_;
  Serve(2);
  fleet_.remembered_ = older;
  fleet_.List();
  EXPECT_EQ(Where(), Footing::kStoreLost);
}

TEST_F(LostStore, ASetThatWasNeverAcknowledgedMayBeUnknown) {
  fleet_.store_is_silent_ = true;
  const auto before = fleet_.remembered_;
  fleet_.Publish(2);
  fleet_.remembered_ = before;  // it never arrived
  fleet_.List();
  EXPECT_EQ(Where(), Footing::kSettled);
}

TEST_F(LostStore, AdoptedItIsGoneOnWithAndNumbersThatItGivesAnewAreNew) {
  Serve(2);
  Serve(3);
  Wipe();
  EXPECT_TRUE(fleet_.Adopt().status.ok()) << fleet_.replies_.back().status;
  EXPECT_EQ(Where(), Footing::kSettled);
  EXPECT_TRUE(fleet_.Status().pools.empty()) << "its adapter is gone with it";
  fleet_.Step(AdapterSet{fleet_.adapter_});
  const VersionInfo again{{kMath, RunId(1), VersionNumber(1)}, Digest{"other"}, {}};
  fleet_.Step(VersionStored{again});
  Settle();
  EXPECT_EQ(fleet_.Pool().committed->version, again);
}

}  // namespace
}  // namespace lorry::sync
