// The proxy's machine by hand: an obedient world answers its effects, unless a test says otherwise.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "services/engine_proxy/machine/binding_name.h"
#include "services/engine_proxy/machine/machine.h"

namespace lorry::proxy {

inline const AdapterName kMath("math");

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
    config.pool = pool_;
    config.new_journal = JournalId("j1");
    machine_.emplace(*Machine::Restore(config, records_, now_));
    Run();
    if (answers_) See();
    Tell(SessionUp{});
  }
  void Reboot() {
    engine_.clear();
    boot_ = BootId("boot2");
    Tell(EngineLost{true});
    See();
  }
  void See() { See(passed_op_); }
  // By a look that began after the answer to this call, and no later one.
  void See(OpId passed) {
    EngineSeen seen{boot_, limits_, "1", std::nullopt, SaysAsleep(), passed};
    seen.base_model = base_;
    Tell(seen);
  }
  // SGLang does not say.
  std::optional<bool> SaysAsleep() const {
    if (limits_.kind == fleet::EngineKind::kSglang) return std::nullopt;
    return asleep_;
  }
  // What is desired: `numbers` wanted, the last of them opened at `epoch`.
  void Desire(uint64_t epoch, std::vector<uint64_t> numbers) {
    fleet::Desired desired = NextDocument();
    for (const uint64_t number : numbers) {
      fleet::WantedVersion wanted;
      wanted.name = NameOf(number);
      wanted.key = {kMath, RunId(1), VersionNumber(number)};
      wanted.must = number == numbers.back();
      wanted.eviction_rank = static_cast<uint32_t>(number);
      wanted.probe = rule_;
      wanted.probe_gap_ppm = gap_ppm_;
      wanted.traits = traits_;
      wanted.leased = leased_.contains(number);
      wanted.deaths_allowed = deaths_allowed_;
      wanted.load = may_load_;
      wanted.on_this_boot = on_this_boot_;
      desired.wanted.push_back(wanted);
    }
    if (epoch > 0)
      desired.rows = {{kMath, fleet::RowMode::kOpen, Epoch(epoch), NameOf(numbers.back()),
                       kHoldForMs, Epoch(serve_from_), quiesce_}};
    Tell(DesiredReceived{desired});
  }
  void Row(fleet::RowMode mode, uint64_t epoch) { WantBeside(mode, epoch, {1}); }
  // A row, of version 1 where it is OPEN, with versions wanted beside it.
  void WantBeside(fleet::RowMode mode, uint64_t epoch, const std::vector<uint64_t>& numbers) {
    fleet::Desired desired = NextDocument();
    for (const uint64_t number : numbers) {
      fleet::WantedVersion wanted;
      wanted.name = NameOf(number);
      wanted.key = {kMath, RunId(1), VersionNumber(number)};
      wanted.must = true;
      desired.wanted.push_back(wanted);
    }
    desired.rows = {{kMath, mode, Epoch(epoch),
                     mode == fleet::RowMode::kOpen ? NameOf(1) : EngineName(), kHoldForMs,
                     Epoch(serve_from_), quiesce_}};
    Tell(DesiredReceived{desired});
  }
  void Tell(const Event& event) {
    events_.push_back(event);
    Run();
  }
  // A process that ends; Start begins another with its journal.
  void Stop() { machine_.reset(); }
  void Pass(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += 500) {
      now_ += 500;
      Tell(TimePassed{});
    }
  }
  // Nobody comes, and it runs when it has asked to be woken.
  void PassAsAsked(int64_t ms) {
    for (const Tick end = now_ + ms; now_ < end;) {
      now_ = std::clamp(wake_at_.value_or(end), now_, end);
      if (wake_at_.has_value() && *wake_at_ <= now_) Tell(TimePassed{});
    }
  }
  static constexpr int64_t kHoldForMs = 5'000;  // of rows that are desired
  // So many requests are at the engine under the version's name, of which some asked for that and
  // not for `latest`.
  void Count(uint64_t number, uint32_t requests, uint32_t by_name = 0) {
    counts_.erase(NameOf(number));
    by_name_.erase(NameOf(number));
    if (requests > 0) counts_[NameOf(number)] = requests;
    if (by_name > 0) by_name_[NameOf(number)] = by_name;
    Report();
  }
  void Report() {
    Tell(DoorReport{machine_->door_table().revision, counts_, waiting_, last_admitted_, by_name_});
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
  // In millionths: "12 at most 30".
  std::string GapOf(uint64_t number) const {
    for (const fleet::ObservedResidency& residency : machine_->Observe().residencies) {
      if (residency.name != NameOf(number) || !residency.gap.has_value()) continue;
      return std::to_string(residency.gap->mean_ppm) + " at most " +
             std::to_string(residency.gap->max_ppm);
    }
    return "none";
  }
  // "FAILED NO_SLOT", "LOADED".
  std::string Told(uint64_t number) const {
    for (const fleet::ObservedResidency& residency : machine_->Observe().residencies) {
      if (residency.name != NameOf(number)) continue;
      const std::string state(fleet::ToString(residency.state));
      return residency.reason.empty() ? state : state + " " + residency.reason;
    }
    return "ABSENT";
  }
  fleet::Failure FailureOf(uint64_t number) const {
    for (const fleet::ObservedResidency& residency : machine_->Observe().residencies) {
      if (residency.name == NameOf(number)) return residency.failure;
    }
    return fleet::Failure::kNone;
  }
  // Deaths that are laid to it.
  uint32_t DeathsOf(uint64_t number) const {
    for (const fleet::Killer& killer : machine_->Observe().killers) {
      if (killer.name == NameOf(number)) return killer.deaths;
    }
    return 0;
  }
  // The engine is looked at so often, a second apart.
  void Look(int times) {
    for (int i = 0; i < times; ++i) {
      now_ += 1'000;
      See();
    }
  }
  // A framework calls; answers are kept by these numbers.
  uint64_t Call(FrameworkCall call) {
    Tell(CallMade{++calls_, call});
    return calls_;
  }
  void Wait(int64_t ms) { now_ += ms; }
  Tick now() const { return now_; }
  fleet::ObservedRow TheRow() const { return machine_->Observe().rows.at(0); }
  bool Routed(uint64_t number) const {
    return machine_->door_table().FindRoute(NameOf(number)) != nullptr;
  }

  std::optional<Machine> machine_;
  std::optional<Tick> wake_at_;  // as it said last
  Records records_;
  std::map<EngineName, uint32_t> counts_, by_name_;  // what the door reports
  std::vector<AdapterName> waiting_;                 // likewise
  std::map<EngineName, uint64_t> last_admitted_;
  std::map<EngineName, std::string> engine_;  // what the engine lists
  uint64_t serve_from_ = 0;                   // of rows: the epoch of the last barrier
  std::set<size_t> silent_;                   // indexes of effects that are not answered
  uint64_t running_ = 0;                      // at the engine, and of which adapters, if it says so
  std::optional<std::set<EngineName>> running_names_;
  bool asleep_ = false;                       // the engine
  bool answers_ = true;                       // it is seen at the start
  uint32_t deaths_allowed_ = 0;               // of what is desired
  bool on_this_boot_ = false;                 // likewise
  bool may_load_ = true;                      // likewise
  std::set<uint64_t> leased_;                 // of what is desired
  std::optional<LoadDone> load_answer_;       // instead of loading
  std::optional<ProbeDone> probe_answer_;     // instead of a token
  std::optional<FetchFailed> fetch_failure_;  // instead of fetching
  std::set<EngineName> keeps_;                // whatever it answers to an unload
  std::optional<peft::BaseModel> base_ = peft::BaseModel{.hidden_size = 128};
  uint64_t trained_on_ = 128;  // the hidden size that every adapter here was trained for
  Outcome check_outcome_ = Outcome::kOk;
  std::optional<fleet::ProbeComparison> compared_ = fleet::ProbeComparison{0.5, 0};
  std::optional<fleet::ReferenceGap> gap_;
  peft::Reference reference_;  // of every image
  std::string differences_;    // of the base model that it was trained on
  std::vector<fleet::ProbeKind> probes_;
  fleet::ProbeMode rule_ = fleet::ProbeMode::kAuto;  // of what is desired, with these traits
  uint32_t gap_ppm_ = fleet::kProbeGapPpmDefault;    // likewise
  fleet::VersionTraits traits_;                      // and of bindings
  Outcome unload_outcome_ = Outcome::kOk;
  int checks_ = 0;
  int fetches_ = 0;
  int unloads_ = 0, deletes_ = 0, resumes_ = 0, cancels_ = 0;
  std::vector<EngineName> loads_;
  int64_t unload_deadline_ms_ = 0;  // of the last one
  bool hash_matches_ = true;        // of a directory that an earlier process left
  Outcome delete_outcome_ = Outcome::kOk;
  fleet::DesiredPause quiesce_;  // of rows that are desired
  std::vector<PauseEngine> pauses_;
  std::vector<PassCall> passed_;
  OpId passed_op_ = 0;  // the last that was answered
  Outcome pass_outcome_ = Outcome::kOk;
  bool pass_hangs_ = false;
  std::map<std::string, std::string> files_;  // frameworks' directories, and what is in them
  std::set<EngineName> shelf_;                // bindings' directories here
  std::map<uint64_t, AnswerBinding> bind_answers_;
  int reads_ = 0;
  uint64_t read_ticket_ = 0;  // of the last
  Outcome pause_outcome_ = Outcome::kOk, resume_outcome_ = Outcome::kOk;
  std::map<uint64_t, AnswerCall> answered_;  // calls of frameworks
  bool door_asleep_ = false;                 // by the table that the door has
  std::set<uint64_t> answered_asleep_;       // calls that were answered meanwhile
  fleet::Observed sent_;
  PoolName pool_ = PoolName("rollout");
  BootId boot_ = BootId("boot1");
  fleet::EngineLimits limits_;

 private:
  fleet::Desired NextDocument() {
    fleet::Desired desired;
    desired.term = Term{1, 1};
    desired.revision = Revision(++revision_);
    desired.journal = machine_->journal();
    desired.boot = boot_;
    return desired;
  }
  void Run() {
    do {
      if (!events_.empty()) {
        machine_->Step(now_, events_.front());
        events_.pop_front();
      }
      Ready ready = machine_->TakeReady();
      wake_at_ = ready.wake_at;
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
    if (!e.binding.path.empty()) {
      if (files_[e.binding.path] != e.digest.value)
        return events_.push_back(FetchFailed{e.op, "BINDING_LOST", "", true, false});
      shelf_.insert(e.name);
    }
    events_.push_back(FetchDone{e.op, "/" + e.name.value});
  }
  void Answer(const CancelFetch& e) {
    ++cancels_;
    events_.push_back(FetchCancelled{e.op});
  }
  void Answer(const HashDirectory& e) { events_.push_back(DirectoryHashed{e.op, hash_matches_}); }
  void Answer(const CheckShapes& e) {
    ++checks_;
    const bool fits = e.base.hidden_size == trained_on_;
    events_.push_back(ShapesChecked{e.op, check_outcome_, fits, fits ? "" : "another shape",
                                    reference_, differences_});
  }
  void Answer(const DeleteDirectory& e) {
    ++deletes_;
    if (delete_outcome_ == Outcome::kOk) shelf_.erase(e.name);
    events_.push_back(DirectoryDeleted{e.op, delete_outcome_});
  }
  void Answer(const List& e) { events_.push_back(Listed{e.op, Outcome::kOk, engine_}); }
  void Answer(const Load& e) {
    loads_.push_back(e.name);
    if (load_answer_.has_value()) {
      load_answer_->op = e.op;
      events_.push_back(*load_answer_);
      return;
    }
    engine_[e.name] = e.path;
    events_.push_back(LoadDone{e.op, Outcome::kOk, "", ""});
  }
  void Answer(const Probe& e) {
    probes_.push_back(e.question.kind);
    if (probe_answer_.has_value()) {
      probe_answer_->op = e.op;
      return events_.push_back(*probe_answer_);
    }
    ProbeDone done{e.op, Outcome::kOk, "", "", {compared_, gap_}};
    if (e.question.kind == fleet::ProbeKind::kPresence) done.answer = {};  // nothing was asked for
    events_.push_back(done);
  }
  void Answer(const Unload& e) {
    ++unloads_;
    unload_deadline_ms_ = e.deadline_ms;
    if (!keeps_.contains(e.name)) engine_.erase(e.name);
    events_.push_back(UnloadDone{e.op, unload_outcome_});
  }
  void Answer(const AskOccupancy& e) {
    events_.push_back(OccupancySeen{e.op, Outcome::kOk, running_, running_names_});
  }
  void Answer(const PauseEngine& e) {
    pauses_.push_back(e);
    const bool holds = pause_outcome_ == Outcome::kOk;
    events_.push_back(PauseDone{e.op, pause_outcome_, holds ? "" : "ENGINE_TIMEOUT", "slow"});
  }
  void Answer(const ResumeEngine& e) {
    ++resumes_;
    events_.push_back(ResumeDone{e.op, resume_outcome_});
  }
  void Answer(const PassCall& e) {
    passed_.push_back(e);
    if (pass_hangs_) return;
    passed_op_ = e.op;
    events_.push_back(PassDone{e.op, pass_outcome_, pass_outcome_ == Outcome::kOk ? "" : "WHY"});
  }
  void Answer(const SetDoorTable& e) {
    door_asleep_ = e.table.asleep;
    events_.push_back(DoorReport{e.table.revision, counts_, waiting_, last_admitted_, by_name_});
  }
  void Answer(const SendObserved& e) { sent_ = e.observed; }
  void Answer(const AnswerCall& e) {
    answered_[e.ticket] = e;
    if (door_asleep_) answered_asleep_.insert(e.ticket);
  }
  void Answer(const ReadBinding& e) {
    ++reads_;
    read_ticket_ = e.ticket;
    BindingRead read{.op = e.op};
    const auto found = files_.find(e.path);
    if (found == files_.end()) {
      read.outcome = Outcome::kFailed;
      read.missing = true;
      read.reason = "DIRECTORY_INVALID";
      return events_.push_back(read);
    }
    read.digest = Digest{found->second};
    read.traits = traits_;
    read.render = fleet::RenderFor(e.kind, traits_);
    read.name = BindingName(read.digest, read.render);
    if (!shelf_.contains(read.name)) read.path = "/" + read.name.value;
    shelf_.insert(read.name);
    events_.push_back(read);
  }
  void Answer(const AnswerBinding& e) { bind_answers_[e.ticket] = e; }

  Tick now_ = 1'000;
  uint64_t calls_ = 0;
  uint64_t revision_ = 0;
  std::deque<Event> events_;
};

constexpr size_t kFetchEffect = 0;
constexpr size_t kCancelEffect = 1;
constexpr size_t kShapesEffect = 3;
constexpr size_t kDeleteEffect = 4;
constexpr size_t kListEffect = 5;
constexpr size_t kHashEffect = 2;
constexpr size_t kLoadEffect = 6;
constexpr size_t kProbeEffect = 7;
constexpr size_t kUnloadEffect = 8;
constexpr size_t kEngineLoadEffect = 9;
constexpr size_t kPauseEffect = 10;
constexpr size_t kResumeEffect = 11;
constexpr size_t kTableEffect = 12;
constexpr size_t kReadBindingEffect = 15;

}  // namespace lorry::proxy
