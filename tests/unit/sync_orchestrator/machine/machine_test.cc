// The orchestrator's machine by hand: members answer what they are told to, and states are
// asserted.
#include "services/sync_orchestrator/machine/machine.h"

#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "lib/base/error.h"

namespace lorry::sync {
namespace {

const AdapterName kMath("math");
const PoolName kRollout("rollout");

// A fleet whose members do what Desired says as soon as they are let.
class Fleet {
 public:
  Fleet() { Begin(); }

  void Begin() {
    machine_.emplace(*Machine::Restore(config_, records_, now_));
    Take();
    Step(StoreListed{{adapter_}, versions_, {}});
  }
  void Policy(const fleet::AdapterPolicy& policy) {
    adapter_.policy = policy;
    Step(AdapterSet{adapter_});
  }
  void Join(const std::string& id, uint32_t slots = 0) {
    fleet::Observed& observed = members_[MemberId(id)];
    observed.journal = JournalId("j-" + id);
    observed.boot = BootId(id + ".1");
    observed.health = fleet::MemberHealth::kReady;
    observed.limits.kind = fleet::EngineKind::kVllm;
    observed.limits.slots = slots;
    observed.sequence = 1;
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), kRollout, observed});
  }
  // The same proxy attaches again, and knows the term given.
  void Rejoin(const std::string& id, const Term& term) {
    fleet::Observed& observed = members_.at(MemberId(id));
    observed.term = term;
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), kRollout, observed});
  }
  Term DesiredTerm(const std::string& id) const { return desired_.at(MemberId(id)).term; }
  VersionKey Publish(uint64_t number) {
    const VersionInfo info{{kMath, adapter_.current_run, VersionNumber(number)},
                           Digest{"d" + std::to_string(number)},
                           {}};
    versions_.push_back(info);
    Step(VersionStored{info});
    return info.key;
  }
  // The member loads what it may load and opens what it should open.
  void Obey(const std::string& id) {
    fleet::Observed& observed = members_.at(MemberId(id));
    const fleet::Desired& desired = desired_[MemberId(id)];
    observed.residencies.clear();
    for (const fleet::WantedVersion& wanted : desired.wanted) {
      fleet::ObservedResidency residency;
      residency.name = wanted.name;
      residency.key = wanted.key;
      residency.state =
          wanted.load ? fleet::ResidencyState::kLoaded : fleet::ResidencyState::kFetched;
      observed.residencies.push_back(residency);
    }
    observed.rows.clear();
    for (const fleet::DesiredRow& row : desired.rows) {
      observed.rows.push_back({row.adapter, row.mode, row.epoch, row.target, false});
    }
    Report(id);
  }
  void Report(const std::string& id) {
    fleet::Observed& observed = members_.at(MemberId(id));
    observed.term = machine_->term();
    observed.revision = desired_[MemberId(id)].revision;
    ++observed.sequence;
    Step(MemberObserved{SessionOf(MemberId(id)), observed});
  }
  void Fetch(const std::string& id, const VersionKey& key, uint64_t bytes_done) {
    fleet::ObservedResidency residency;
    residency.name = desired_.at(MemberId(id)).wanted.at(0).name;
    residency.key = key;
    residency.state = fleet::ResidencyState::kFetching;
    residency.bytes_done = bytes_done;
    residency.bytes_total = 100;
    Of(id).residencies = {residency};
    Report(id);
  }
  // What the last word of a watch said of a member.
  std::string Told(const std::string& id) const {
    for (const MemberProgress& its : told_.back().progress) {
      if (its.member.value != id) continue;
      return std::string(fleet::ToString(its.state)) + (its.active ? " active" : "") +
             (its.dropped.empty() ? "" : " " + its.dropped);
    }
    return "nothing";
  }
  fleet::Observed& Of(const std::string& id) { return members_.at(MemberId(id)); }
  void Pass(int64_t ms) {
    now_ += ms;
    Step(TimePassed{});
  }
  void Step(const Event& event) {
    machine_->Step(now_, event);
    Take();
  }
  PoolStatus Pool() const { return machine_->GetStatus().pools.at(0); }
  bool Wants(const std::string& id, uint64_t number) const {
    for (const fleet::WantedVersion& wanted : desired_.at(MemberId(id)).wanted) {
      if (wanted.key.number.value == number) return true;
    }
    return false;
  }
  bool MayLoad(const std::string& id, uint64_t number) const {
    for (const fleet::WantedVersion& wanted : desired_.at(MemberId(id)).wanted) {
      if (wanted.key.number.value == number) return wanted.load;
    }
    return false;
  }
  uint64_t Committed() const {
    const PoolStatus pool = Pool();
    return pool.committed.has_value() ? pool.committed->version.key.number.value : 0;
  }
  SessionId SessionOf(const MemberId& id) {
    return std::hash<std::string>()(id.value) % 1'000 + generation_ * 1'000;
  }
  void Restart() {
    ++generation_;
    Begin();
  }

  std::vector<Reply> replies_;
  std::vector<EndSession> ended_;
  std::vector<WatchEvent> told_;
  AdapterInfo adapter_{kMath, {}, RunId(1)};
  Records records_;
  Config config_;
  std::vector<std::vector<VersionKey>> holds_;  // as they were set

 private:
  void Take() {
    Ready ready = machine_->TakeReady();
    for (const Record& record : ready.records) {
      if (record.value.has_value()) {
        records_[record.key] = *record.value;
      } else {
        records_.erase(record.key);
      }
    }
    for (const Reply& reply : ready.replies) replies_.push_back(reply);
    std::vector<Revision> revisions;
    for (const Effect& effect : ready.effects) {
      if (const auto* desired = std::get_if<SetDesired>(&effect))
        desired_[desired->member] = desired->desired;
      if (const auto* ended = std::get_if<EndSession>(&effect)) ended_.push_back(*ended);
      if (const auto* notify = std::get_if<NotifyWatch>(&effect)) told_.push_back(notify->event);
      if (const auto* set = std::get_if<SetHolds>(&effect)) {
        holds_.push_back(set->versions);
        revisions.push_back(set->revision);
      }
    }
    for (const Revision revision : revisions) Step(HoldsAcked{revision, {}});
  }

  Tick now_ = 1'000;
  uint64_t generation_ = 1;
  std::optional<Machine> machine_;
  std::map<MemberId, fleet::Observed> members_;
  std::map<MemberId, fleet::Desired> desired_;
  std::vector<VersionInfo> versions_;
};

TEST(Sync, AVersionIsCommittedOnceEveryMemberHasIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().phase, SyncPhase::kStaging);
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 0u);
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().committed->epoch, Epoch(1));
}

TEST(Sync, OneMemberOfAKindTriesTheVersionBeforeTheOthersLoadIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  EXPECT_TRUE(fleet.MayLoad("e1", 1));
  EXPECT_TRUE(fleet.Wants("e2", 1));
  EXPECT_FALSE(fleet.MayLoad("e2", 1));
  fleet.Obey("e1");
  EXPECT_TRUE(fleet.MayLoad("e2", 1));
}

TEST(Sync, ASlowCanaryGetsAnotherBesideIt) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Pass(15'000);
  EXPECT_TRUE(fleet.MayLoad("e2", 1));
}

TEST(Sync, AfterTheDeadlineHalfOfTheMembersAreEnough) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Pass(60'000);
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Sync, FewerThanNeededAbortAndTheVersionWaits) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Join("e3");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Pass(60'000);
  EXPECT_EQ(fleet.Committed(), 0u);
  EXPECT_FALSE(fleet.Pool().last_decision->commit);
  EXPECT_EQ(fleet.Pool().last_decision->reason, "STAGE_DEADLINE");
  EXPECT_EQ(fleet.Pool().pending.size(), 1u);
}

TEST(Sync, TheTryAfterADeadlineComesSoonHoweverManyThereWere) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Pass(600'000);  // the store answers nobody
  ASSERT_EQ(fleet.Committed(), 0u);
  for (int second = 0; second < 2; ++second) {
    fleet.Pass(1'000);
    fleet.Obey("e1");
  }
  EXPECT_EQ(fleet.Committed(), 1u);
}

TEST(Sync, NewestWinsAmongThoseThatWaitButNotOverTheRunningOne) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Publish(2);
  fleet.Publish(3);
  EXPECT_EQ(fleet.Pool().sync->version.key.number, VersionNumber(1));
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().sync->version.key.number, VersionNumber(3));
}

TEST(Sync, SkipNeverQueuesAFewAndRefusesTheRest) {
  Fleet fleet;
  fleet::AdapterPolicy policy;
  policy.skip = fleet::SkipRule::kNever;
  fleet.Policy(policy);
  VersionKey last;
  for (uint64_t number = 1; number <= 9; ++number) last = fleet.Publish(number);
  EXPECT_EQ(fleet.Pool().pending.size(), 8u);
  fleet.Step(WatchOpened{1, last, kRollout});
  EXPECT_EQ(fleet.told_.back().reason, "SYNC_BACKLOG");
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Sync, AnotherBootIsTheMembersDeath) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Of("e2").boot = BootId("e2.2");
  fleet.Report("e2");
  EXPECT_EQ(fleet.Committed(), 1u);  // decided with the one that remains
}

TEST(Sync, TwoEngineDeathsMakeAVersionPoisoned) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  const EngineName name = fleet::MakeEngineName(key, Digest{"d1"}, fleet::Render::kPlain);
  fleet.Of("e1").killers = {{name, 1}};
  fleet.Report("e1");
  EXPECT_EQ(fleet.Pool().last_decision->reason, "ENGINE_DIED");
  fleet.Of("e1").killers = {{name, 2}};
  fleet.Report("e1");
  fleet.Pass(60'000);
  EXPECT_TRUE(fleet.Pool().pending.empty());
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_EQ(fleet.told_.back().reason, "POISONED");
}

TEST(Sync, ARestartGoesOnWithTheSameEpoch) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Restart();
  EXPECT_EQ(fleet.Pool().sync->epoch, Epoch(1));
  fleet.Join("e1");
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_EQ(fleet.Pool().committed->epoch, Epoch(1));
}

TEST(Sync, BarrierIsRefusedWhereItWouldBegin) {
  Fleet fleet;
  fleet::AdapterPolicy policy;
  policy.mode = fleet::SyncMode::kBarrier;
  fleet.Policy(policy);
  fleet.Join("e1");
  fleet.Publish(1);
  EXPECT_EQ(fleet.Pool().waits_for, "UNIMPLEMENTED");
}

TEST(Watch, TellsHowFarEachMemberIs) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  EXPECT_EQ(fleet.Told("e1"), "ABSENT");
  EXPECT_EQ(fleet.Told("e2"), "ABSENT");
  fleet.Obey("e1");  // the first of its kind
  EXPECT_EQ(fleet.Told("e1"), "LOADED");
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Told("e2"), "LOADED");
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Told("e1"), "LOADED active");
  EXPECT_FALSE(fleet.told_.back().final);
  fleet.Obey("e2");
  EXPECT_EQ(fleet.Told("e2"), "LOADED active");
  EXPECT_TRUE(fleet.told_.back().final);
}

TEST(Watch, TellsBytesAtItsPaceAndTheNewestOnly) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  const size_t told = fleet.told_.size();
  for (uint64_t done = 1; done <= 50; ++done) fleet.Fetch("e1", key, done);
  EXPECT_EQ(fleet.told_.size(), told);
  fleet.Pass(100);
  ASSERT_EQ(fleet.told_.size(), told + 1);
  EXPECT_EQ(fleet.told_.back().progress.at(0).bytes_done, 50u);
  fleet.Pass(100);
  EXPECT_EQ(fleet.told_.size(), told + 1) << "nothing is new";
  fleet.Obey("e1");
  EXPECT_EQ(fleet.told_.back().state, WatchEvent::State::kDelivering) << "a decision does not wait";
}

TEST(Watch, SaysWhyAMemberTakesNoPart) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  fleet.Join("e3");
  const VersionKey key = fleet.Publish(1);
  fleet.Step(WatchOpened{1, key, kRollout});
  fleet.Of("e2").boot = BootId("e2.2");
  fleet.Report("e2");
  EXPECT_EQ(fleet.Told("e2"), "ABSENT ENGINE_RESTARTED");
  fleet.Step(SessionLost{fleet.SessionOf(MemberId("e3"))});
  fleet.Pass(100);
  EXPECT_EQ(fleet.Told("e3"), "ABSENT LOST");
}

TEST(Status, TellsOfTheRunningSyncHowFarEachMemberIs) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Join("e2");
  const VersionKey key = fleet.Publish(1);
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Pool().about, key);
  ASSERT_EQ(fleet.Pool().progress.size(), 2u);
  EXPECT_EQ(fleet.Pool().progress[0].state, fleet::ResidencyState::kLoaded);
}

TEST(Retention, TheWindowIsKeptAndTheRestLeaves) {
  Fleet fleet;
  fleet.Join("e1");
  for (uint64_t number = 1; number <= 3; ++number) {
    fleet.Publish(number);
    fleet.Obey("e1");
  }
  EXPECT_FALSE(fleet.Wants("e1", 1));
  EXPECT_TRUE(fleet.Wants("e1", 2));
  EXPECT_TRUE(fleet.Wants("e1", 3));
}

TEST(Retention, ALeaseKeepsAVersionUntilItExpires) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  LeaseAsked ask;
  ask.request = 1;
  ask.selector = {kMath, Selector::Kind::kNumber, {}, {}, VersionNumber(1)};
  ask.pool = kRollout;
  ask.holder = "client";
  ask.ttl_ms = 10'000;
  fleet.Step(ask);
  EXPECT_TRUE(fleet.replies_.back().status.ok());
  for (uint64_t number = 2; number <= 4; ++number) {
    fleet.Publish(number);
    fleet.Obey("e1");
  }
  EXPECT_TRUE(fleet.Wants("e1", 1));
  fleet.Pass(10'000);
  EXPECT_FALSE(fleet.Wants("e1", 1));
}

TEST(Retention, ARollbackRestartsTheLineage) {
  Fleet fleet;
  fleet.Join("e1");
  const VersionKey first = fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  fleet.Obey("e1");
  fleet.Step(OverrideSet{1, kMath, kRollout, first});
  EXPECT_EQ(fleet.replies_.back().epoch, Epoch(3));
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 1u);
  EXPECT_FALSE(fleet.Wants("e1", 2));
  fleet.Publish(3);
  EXPECT_EQ(fleet.Committed(), 1u);  // waits until the override is lifted
  fleet.Step(OverrideSet{2, kMath, kRollout, std::nullopt});
  fleet.Obey("e1");
  EXPECT_EQ(fleet.Committed(), 3u);
}

TEST(Slots, NoSlotNamesTheHolders) {
  Fleet fleet;
  fleet::AdapterPolicy policy;
  policy.keep = {fleet::KeepRule::Kind::kCount, 1};
  fleet.Policy(policy);
  fleet.Join("e1", 1);
  fleet.Publish(1);
  fleet.Obey("e1");
  fleet.Publish(2);
  EXPECT_EQ(fleet.Pool().waits_for, "NO_SLOT");
  EXPECT_THAT(fleet.Pool().detail, testing::HasSubstr("math-v1-"));
}

TEST(Roster, AnotherJournalWhileTheFirstIsAttachedIsRefused) {
  Fleet fleet;
  fleet.Join("e1");
  fleet::Observed other = fleet.Of("e1");
  other.journal = JournalId("j-other");
  fleet.Step(SessionOpened{99'999, MemberId("e1"), kRollout, other});
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "ENGINE_CLAIMED");
}

TEST(Roster, AReignOverLostRecordsDesiresAndReleasesNothingBeforeItAdopts) {
  Fleet fleet;
  fleet.Join("e1");
  fleet.Publish(1);
  fleet.Obey("e1");
  ASSERT_EQ(fleet.Committed(), 1u);
  fleet.Obey("e1");  // it opens the row, and says so
  const Term lost{1, 1};
  fleet.records_.clear();
  fleet.config_.new_incarnation = 2;
  fleet.holds_.clear();
  fleet.Restart();
  fleet.Rejoin("e1", lost);
  fleet.Pass(60'000);
  EXPECT_TRUE(fleet.holds_.empty()) << "the store keeps what the lost reign named";
  EXPECT_EQ(fleet.DesiredTerm("e1"), lost);
  fleet.Step(FleetAdopted{1});
  EXPECT_TRUE(fleet.replies_.back().status.ok());
  EXPECT_EQ(fleet.Committed(), 1u);
  ASSERT_FALSE(fleet.holds_.empty());
  EXPECT_EQ(fleet.holds_.back().size(), 1u);
  EXPECT_EQ(fleet.DesiredTerm("e1"), (Term{2, 1}));
}

TEST(Roster, AProxyOfALaterReignIsRefused) {
  Fleet fleet;
  fleet.Publish(1);  // a store with versions: settled only after a while
  fleet.Pass(6'000);
  fleet::Observed later;
  later.journal = JournalId("j");
  later.term = Term{9, 9};
  fleet.Step(SessionOpened{99'999, MemberId("e9"), kRollout, later});
  EXPECT_EQ(ReasonOf(fleet.ended_.back().status), "TERM_FENCED");
}

}  // namespace
}  // namespace lorry::sync
