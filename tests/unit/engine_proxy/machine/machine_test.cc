// The proxy's machine by hand: an obedient world answers its effects, unless a test says otherwise.
#include "services/engine_proxy/machine/machine.h"

#include <algorithm>
#include <deque>
#include <set>

#include "gtest/gtest.h"

namespace lorry::proxy {
namespace {

const AdapterName kMath("math");

class Bench {
 public:
  explicit Bench(fleet::EngineKind kind = fleet::EngineKind::kVllm, uint32_t slots = 0) {
    limits_.kind = kind;
    limits_.slots = slots;
    Start();
  }
  void Start() {
    Config config;
    config.member = MemberId("e1");
    config.new_journal = JournalId("j1");
    machine_.emplace(*Machine::Restore(config, records_, now_));
    Run();
    Tell(EngineSeen{boot_, limits_, "1", "", false});
    Tell(SessionUp{});
  }
  void Reboot() {
    engine_.clear();
    boot_ = BootId("boot2");
    Tell(EngineLost{true});
    Tell(EngineSeen{boot_, limits_, "1", "", false});
  }
  // What is desired: `numbers` wanted, the last of them opened at `epoch`.
  void Desire(uint64_t epoch, std::vector<uint64_t> numbers) {
    fleet::Desired desired;
    desired.term = Term{1, 1};
    desired.revision = Revision(++revision_);
    desired.journal = machine_->journal();
    for (const uint64_t number : numbers) {
      fleet::WantedVersion wanted;
      wanted.name = NameOf(number);
      wanted.key = {kMath, RunId(1), VersionNumber(number)};
      wanted.must = number == numbers.back();
      wanted.eviction_rank = static_cast<uint32_t>(number);
      desired.wanted.push_back(wanted);
    }
    if (epoch > 0)
      desired.rows = {
          {kMath, fleet::RowMode::kOpen, Epoch(epoch), NameOf(numbers.back()), 0, true}};
    Tell(DesiredReceived{desired});
  }
  void Row(fleet::RowMode mode, uint64_t epoch) {
    fleet::Desired desired;
    desired.term = Term{1, 1};
    desired.revision = Revision(++revision_);
    desired.journal = machine_->journal();
    fleet::WantedVersion wanted;
    wanted.name = NameOf(1);
    wanted.must = true;
    desired.wanted = {wanted};
    desired.rows = {{kMath, mode, Epoch(epoch),
                     mode == fleet::RowMode::kOpen ? NameOf(1) : EngineName(), 5'000, false}};
    Tell(DesiredReceived{desired});
  }
  void Tell(const Event& event) {
    events_.push_back(event);
    Run();
  }
  void Pass(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += 500) {
      now_ += 500;
      Tell(TimePassed{});
    }
  }
  static EngineName NameOf(uint64_t number) {
    return EngineName("math-v" + std::to_string(number) + "-0123456789ab");
  }
  fleet::ResidencyState StateOf(uint64_t number) const {
    for (const fleet::ObservedResidency& residency : machine_->Observe().residencies) {
      if (residency.name == NameOf(number)) return residency.state;
    }
    return fleet::ResidencyState::kAbsent;
  }
  fleet::ObservedRow TheRow() const { return machine_->Observe().rows.at(0); }
  bool Routed(uint64_t number) const {
    return machine_->door_table().FindRoute(NameOf(number)) != nullptr;
  }

  std::optional<Machine> machine_;
  Records records_;
  std::map<EngineName, uint32_t> counts_;     // what the door reports
  std::map<EngineName, std::string> engine_;  // what the engine lists
  std::set<size_t> silent_;                   // indexes of effects that are not answered
  uint64_t running_ = 0;
  std::optional<LoadDone> load_answer_;       // instead of loading
  std::optional<FetchFailed> fetch_failure_;  // instead of fetching
  std::set<EngineName> keeps_;                // whatever it answers to an unload
  int fetches_ = 0;
  int unloads_ = 0, deletes_ = 0, resumes_ = 0;
  BootId boot_ = BootId("boot1");
  fleet::EngineLimits limits_;

 private:
  void Run() {
    do {
      if (!events_.empty()) {
        machine_->Step(now_, events_.front());
        events_.pop_front();
      }
      Ready ready = machine_->TakeReady();
      for (const Record& record : ready.records) {
        if (record.value.has_value()) {
          records_[record.key] = *record.value;
        } else {
          records_.erase(record.key);
        }
      }
      for (const Effect& effect : ready.effects) {
        if (!silent_.contains(effect.index()))
          std::visit([this](const auto& e) { Answer(e); }, effect);
      }
    } while (!events_.empty());
  }
  void Answer(const Fetch& e) {
    ++fetches_;
    if (fetch_failure_.has_value()) {
      fetch_failure_->op = e.op;
      return events_.push_back(*fetch_failure_);
    }
    events_.push_back(FetchDone{e.op, "/" + e.name.value});
  }
  void Answer(const CancelFetch& e) { events_.push_back(FetchCancelled{e.op}); }
  void Answer(const HashDirectory& e) { events_.push_back(DirectoryHashed{e.op, true}); }
  void Answer(const DeleteDirectory& e) {
    ++deletes_;
    events_.push_back(DirectoryDeleted{e.op, Outcome::kOk});
  }
  void Answer(const List& e) { events_.push_back(Listed{e.op, Outcome::kOk, engine_}); }
  void Answer(const Load& e) {
    if (load_answer_.has_value()) {
      load_answer_->op = e.op;
      events_.push_back(*load_answer_);
      return;
    }
    engine_[e.name] = e.path;
    events_.push_back(LoadDone{e.op, Outcome::kOk, "", ""});
  }
  void Answer(const Probe& e) { events_.push_back(ProbeDone{e.op, Outcome::kOk, "", ""}); }
  void Answer(const Unload& e) {
    ++unloads_;
    if (!keeps_.contains(e.name)) engine_.erase(e.name);
    events_.push_back(UnloadDone{e.op, Outcome::kOk});
  }
  void Answer(const AskEngineLoad& e) {
    events_.push_back(EngineLoadSeen{e.op, Outcome::kOk, running_});
  }
  void Answer(const PauseEngine& e) { events_.push_back(PauseDone{e.op, Outcome::kOk}); }
  void Answer(const ResumeEngine& e) {
    ++resumes_;
    events_.push_back(ResumeDone{e.op, Outcome::kOk});
  }
  void Answer(const SetDoorTable& e) { events_.push_back(DoorReport{e.table.revision, counts_}); }
  void Answer(const SendObserved&) {}

  Tick now_ = 1'000;
  uint64_t revision_ = 0;
  std::deque<Event> events_;
};

constexpr size_t kLoadEffect = 5;
constexpr size_t kUnloadEffect = 7;
constexpr size_t kTableEffect = 11;

TEST(Residency, AWantedVersionIsFetchedLoadedProbedAndRouted) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  EXPECT_TRUE(bench.Routed(1));
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Residency, AStoreThatIsAwayFailsNobodyAndIsMetSoonAfterItsReturn) {
  Bench proxy;
  proxy.fetch_failure_ = FetchFailed{.reason = "", .detail = "refused", .away = true};
  proxy.Desire(1, {1});
  for (int s = 0; s < 120; ++s) {
    proxy.Pass(1'000);
    ASSERT_EQ(proxy.StateOf(1), fleet::ResidencyState::kAbsent);
  }
  EXPECT_LT(proxy.fetches_, 70);
  proxy.fetch_failure_.reset();
  proxy.Pass(2'000);
  EXPECT_TRUE(proxy.Routed(1));
}

TEST(Residency, AFetchThatFailsHereIsFailedAfterAFewTries) {
  Bench proxy;
  proxy.fetch_failure_ = FetchFailed{.reason = "DISK_FULL", .detail = ""};
  proxy.Desire(1, {1});
  proxy.Pass(2'000);
  EXPECT_EQ(proxy.StateOf(1), fleet::ResidencyState::kFailed);
  EXPECT_EQ(proxy.fetches_, 3);
}

TEST(Residency, NothingIsUnloadedWithACount) {
  Bench bench;
  bench.Desire(1, {1});
  bench.counts_[Bench::NameOf(1)] = 1;
  bench.running_ = 1;
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
  EXPECT_FALSE(bench.Routed(1));
  bench.counts_.clear();
  bench.running_ = 0;
  bench.Tell(DoorReport{bench.machine_->door_table().revision, {}});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.deletes_, 1);
}

TEST(Residency, NothingIsUnloadedBeforeEveryContextHasTheTable) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kTableEffect);
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
}

TEST(Residency, TheEnginesOwnLoadContradictsAnUnload) {
  Bench bench;
  bench.Desire(1, {1});
  bench.running_ = 1;  // somebody calls the engine directly
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 0);
}

TEST(Residency, AVersionWithoutARoomThatCouldBeMadeSaysNoSlot) {
  Bench bench;
  bench.limits_ = {.kind = fleet::EngineKind::kSglang, .slots = 1};
  bench.Start();
  bench.Desire(1, {1});
  bench.Desire(2, {2});
  bench.Pass(2'000);
  const fleet::Observed observed = bench.machine_->Observe();
  EXPECT_EQ(observed.residencies.at(1).reason, "NO_SLOT");
  EXPECT_NE(observed.residencies.at(1).detail.find("--max-loaded-loras"), std::string::npos);
  EXPECT_EQ(observed.residencies.at(0).reason, "");
}

TEST(Row, SaysThatItIsBehindWhileALaterDecisionCannotBeServed) {
  Bench bench;
  bench.Desire(1, {1});
  EXPECT_FALSE(bench.machine_->door_table().rows.at(0).behind);
  bench.silent_.insert(kLoadEffect);
  bench.Desire(2, {1, 2});
  EXPECT_EQ(bench.TheRow().epoch, Epoch(1));
  EXPECT_TRUE(bench.machine_->door_table().rows.at(0).behind);
}

TEST(Residency, ManyAreUnloadedOneByOneWithoutAPause) {
  Bench bench;
  bench.Desire(1, {1, 2, 3, 4});
  bench.Pass(5'000);
  bench.Desire(5, {5});
  bench.Pass(100);
  EXPECT_EQ(bench.unloads_, 4);
  EXPECT_TRUE(bench.engine_.contains(Bench::NameOf(5)));
}

TEST(Residency, AnUnloadThatIsAnsweredAndNotDoneIsNotAskedForAgainAtOnce) {
  Bench bench;
  bench.Desire(1, {1});
  bench.keeps_.insert(Bench::NameOf(1));
  bench.Desire(2, {2});
  bench.Pass(10'000);
  EXPECT_GT(bench.unloads_, 1);
  EXPECT_LE(bench.unloads_, 11);
}

TEST(Residency, AfterARestartCountsAreUnknownUntilTheEngineIsQuietTwice) {
  Bench bench;
  bench.Desire(1, {1});
  bench.running_ = 1;
  bench.Start();
  EXPECT_FALSE(bench.machine_->Observe().residencies.at(0).count_known);
  bench.running_ = 0;
  bench.Pass(5'000);
  EXPECT_TRUE(bench.machine_->Observe().residencies.at(0).count_known);
}

TEST(Residency, ARequestThatTheDoorHasNotEndedYetHidesNoneOfAnEarlierProcess) {
  Bench bench;
  bench.Desire(1, {1});
  bench.running_ = 1;  // admitted before the restart
  bench.Start();
  for (int second = 0; second < 20; ++second) {
    // What the door counts while the engine is asked, the engine has ended already.
    bench.Tell(DoorReport{bench.machine_->door_table().revision, {{Bench::NameOf(1), 1}}});
    bench.Pass(500);
    bench.Tell(DoorReport{bench.machine_->door_table().revision, {}});
  }
  EXPECT_FALSE(bench.machine_->Observe().residencies.at(0).count_known);
}

TEST(Residency, ASurvivorIsServedAgainAfterARestartWithoutTheOrchestrator) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Start();
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Residency, ASurvivorOfALostJournalIsKnownByItsNameAndLeaves) {
  Bench bench;
  const EngineName stranger("other-v7-0123456789ab");
  bench.engine_[stranger] = "/elsewhere";
  bench.engine_[EngineName("not-one-of-ours")] = "/by-hand";
  bench.Reboot();
  bench.engine_[stranger] = "/elsewhere";
  bench.engine_[EngineName("not-one-of-ours")] = "/by-hand";
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(0, {1});
  bench.Pass(10'000);
  const fleet::Observed observed = bench.machine_->Observe();
  const auto it = std::find_if(observed.residencies.begin(), observed.residencies.end(),
                               [&](const auto& r) { return r.name == stranger; });
  ASSERT_NE(it, observed.residencies.end());
  EXPECT_EQ(it->key, (VersionKey{AdapterName("other"), RunId(), VersionNumber(7)}));
  for (const auto& residency : observed.residencies) {
    EXPECT_NE(residency.name, EngineName("not-one-of-ours")) << "what others loaded is theirs";
  }
}

TEST(Residency, ANewBootLosesEverythingAndGetsItAgain) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kLoadEffect);
  bench.Reboot();
  EXPECT_FALSE(bench.Routed(1));
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kClosed);
}

TEST(Residency, ALoadWithoutAnAnswerThatTheEngineListsIsOurs) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Desire(0, {1});
  bench.Pass(5'000);
  EXPECT_NE(bench.StateOf(1), fleet::ResidencyState::kAbsent);
}

TEST(Residency, ADirectoryIsNotRemovedWhileALoadOfItMayYetHappen) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(0, {1});
  bench.Desire(0, {2});
  bench.Pass(2'000);
  EXPECT_EQ(bench.deletes_, 0);
}

TEST(Residency, TheAnswerToAnUnloadSettlesALoadThatGotNone) {
  Bench bench;
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.Desire(0, {1});
  bench.load_answer_.reset();
  bench.Desire(0, {});
  bench.Pass(10'000);
  EXPECT_EQ(bench.unloads_, 1);
  EXPECT_EQ(bench.deletes_, 1);
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kAbsent);
}

TEST(Residency, AnUnloadPastItsDeadlineWedgesAnSglangEngine) {
  Bench bench(fleet::EngineKind::kSglang);
  bench.Desire(1, {1});
  bench.silent_.insert(kUnloadEffect);
  bench.Desire(2, {2});
  bench.Pass(5'000);
  // The driver's deadline passes; every operation number it could be is answered.
  for (OpId op = 1; op < 200; ++op) bench.Tell(UnloadDone{op, Outcome::kUnknown});
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kWedged);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(2));
  bench.Reboot();
  EXPECT_EQ(bench.machine_->Observe().health, fleet::MemberHealth::kReady);
}

TEST(Residency, AnOldMayVersionMakesRoomForAMust) {
  Bench bench(fleet::EngineKind::kVllm, 2);
  bench.Desire(1, {1});
  bench.Desire(2, {1, 2});
  EXPECT_EQ(bench.StateOf(1), fleet::ResidencyState::kLoaded);
  bench.Desire(3, {1, 2, 3});
  bench.Pass(5'000);
  EXPECT_EQ(bench.StateOf(3), fleet::ResidencyState::kLoaded);
}

TEST(Residency, SlotsAreCountedByAListingThatShowsWhatTheLastLoadSettled) {
  Bench bench(fleet::EngineKind::kVllm, 3);
  bench.running_ = 1;  // nothing can be unloaded
  bench.load_answer_ = LoadDone{0, Outcome::kUnknown, "", ""};
  bench.Desire(0, {1});
  // The engine works off its queue: with the answer to the next load, that of 1 has happened.
  bench.load_answer_.reset();
  bench.engine_[Bench::NameOf(1)] = "/" + Bench::NameOf(1).value;
  bench.Desire(0, {2, 3});
  EXPECT_EQ(bench.StateOf(3), fleet::ResidencyState::kLoaded);
  EXPECT_EQ(bench.StateOf(2), fleet::ResidencyState::kFetched) << "the last slot is for a MUST";
}

TEST(Rows, ARollingRowServesTheOldVersionUntilTheNewOneIsLoaded) {
  Bench bench;
  bench.Desire(1, {1});
  bench.silent_.insert(kLoadEffect);
  bench.Desire(2, {2});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_EQ(bench.TheRow().target, Bench::NameOf(1));
}

TEST(Rows, AHoldEndsByItsOwnDeadlineAndSaysSo) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(fleet::RowMode::kHeld, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kHeld);
  bench.Pass(5'000);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_TRUE(bench.TheRow().hold_revoked);
}

TEST(Rows, ALockNeedsAHoldAndSurvivesARestart) {
  Bench bench;
  bench.Desire(1, {1});
  bench.Row(fleet::RowMode::kLocked, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  bench.Row(fleet::RowMode::kHeld, 2);
  bench.Row(fleet::RowMode::kLocked, 2);
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
  bench.Start();
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kLocked);
  bench.Row(fleet::RowMode::kOpen, 1);  // the sync was aborted
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
}

TEST(Rows, ALowerTermChangesNothing) {
  Bench bench;
  bench.Desire(1, {1});
  fleet::Desired stale;
  stale.term = Term{1, 0};
  stale.revision = Revision(99);
  stale.journal = bench.machine_->journal();
  bench.Tell(DesiredReceived{stale});
  EXPECT_EQ(bench.TheRow().mode, fleet::RowMode::kOpen);
  EXPECT_EQ(bench.machine_->term(), (Term{1, 1}));
}

TEST(Pauses, OneThatAProcessLeftBehindIsEndedByTheNext) {
  Bench bench;
  bench.records_["paused"] = PausedRecord{BootId("boot1"), fleet::PauseKind::kKeep};
  bench.Start();
  EXPECT_GE(bench.resumes_, 1);
  EXPECT_FALSE(bench.records_.contains("paused"));
}

TEST(Records, SurviveTheirText) {
  const std::vector<RecordValue> records = {
      JournalRecord{MemberId("e1"), JournalId("j")},
      TermRecord{Term{1, 2}},
      RowRecord{1, true, Epoch(3), EngineName("n"), Epoch(4)},
      BootRecord{BootId("b")},
      NameRecord{{kMath, RunId(1), VersionNumber(2)},
                 Digest{"d"},
                 fleet::Render::kRsloraFolded,
                 "/p",
                 BootId("b")},
      PausedRecord{BootId("b"), fleet::PauseKind::kKeep},
      WedgedRecord{BootId("b"), EngineName("n")},
      KillerRecord{2},
  };
  for (const RecordValue& record : records) {
    const absl::StatusOr<RecordValue> decoded = Decode(Encode(record));
    ASSERT_TRUE(decoded.ok()) << Encode(record);
    EXPECT_EQ(*decoded, record) << Encode(record);
  }
  EXPECT_FALSE(Decode("{\"kind\":\"tea\"}").ok());
}

}  // namespace
}  // namespace lorry::proxy
