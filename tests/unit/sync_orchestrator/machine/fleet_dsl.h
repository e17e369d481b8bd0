// The orchestrator's machine by hand, for the tests beside it: members that answer what they are
// told to, records that survive a restart, and what was said, to be asserted on. One thread.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sync {

inline const AdapterName kMath("math");
inline const PoolName kRollout("rollout");
inline const Selector kLatest{kMath, Selector::Kind::kLatest, {}, {}, {}};

// A fleet whose members do what Desired says as soon as they are let.
class Fleet {
 public:
  Fleet() { Begin(); }

  void Begin() {
    machine_.emplace(*Machine::Restore(config_, records_, now_));
    Take();
    List();
  }
  // All that the store holds, and what it remembers of this orchestrator.
  void List() { Step(StoreListed{{adapter_}, versions_, {}, remembered_}); }
  void Policy(const fleet::AdapterPolicy& policy) {
    adapter_.policy = policy;
    Step(AdapterSet{adapter_});
  }
  void Join(const std::string& id, uint32_t slots = 0,
            fleet::EngineKind kind = fleet::EngineKind::kVllm, const PoolName& pool = kRollout) {
    fleet::Observed& observed = members_[MemberId(id)];
    observed.journal = JournalId("j-" + id);
    observed.boot = BootId(id + ".1");
    observed.health = fleet::MemberHealth::kReady;
    observed.limits.kind = kind;
    observed.limits.slots = slots;
    observed.sequence = 1;
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), pool, observed});
  }
  // The same proxy attaches again, and knows the term given.
  void Rejoin(const std::string& id, const Term& term, const PoolName& pool = kRollout) {
    fleet::Observed& observed = members_.at(MemberId(id));
    observed.term = term;
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), pool, observed});
  }
  // The same proxy, started again for another pool: it forgets the rows of this one.
  void Move(const std::string& id, const std::string& pool) {
    Of(id).rows.clear();
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), PoolName(pool), Of(id)});
  }
  Revision DesiredRevision(const std::string& id) const {
    return desired_.at(MemberId(id)).revision;
  }
  Term DesiredTerm(const std::string& id) const { return desired_.at(MemberId(id)).term; }
  VersionKey Publish(uint64_t number, const fleet::VersionTraits& traits = {}) {
    const VersionInfo info{{kMath, adapter_.current_run, VersionNumber(number)},
                           Digest{"d" + std::to_string(number)},
                           traits};
    versions_.push_back(info);
    Step(VersionStored{info});
    return info.key;
  }
  void Delete(const VersionKey& key) {
    std::erase_if(versions_, [&](const VersionInfo& info) { return info.key == key; });
    Step(VersionDeleted{key});
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
    std::vector<fleet::ObservedRow> rows;
    for (const fleet::DesiredRow& row : desired.rows)
      rows.push_back(Answer(desired, row, observed));
    observed.rows = std::move(rows);
    Report(id);
  }
  // A row as it should be. One that holds or locks goes on standing on what it stood on.
  static fleet::ObservedRow Answer(const fleet::Desired& desired, const fleet::DesiredRow& wanted,
                                   const fleet::Observed& observed) {
    using fleet::RowMode;
    if (wanted.mode == RowMode::kOpen || wanted.mode == RowMode::kClosed)
      return {wanted.adapter, wanted.mode, desired.term.incarnation, wanted.epoch, wanted.target};
    fleet::ObservedRow row;
    for (const fleet::ObservedRow& had : observed.rows) {
      if (had.adapter == wanted.adapter) row = had;
    }
    row.adapter = wanted.adapter;
    row.mode = wanted.mode == RowMode::kHeld && row.target.empty() ? RowMode::kClosed : wanted.mode;
    row.barrier = wanted.epoch;
    return row;
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
  EngineName NameOf(const VersionKey& key) const {
    return fleet::MakeEngineName(key, Digest{"d" + std::to_string(key.number.value)},
                                 fleet::Render::kPlain);
  }
  // The version is in this state on the member, and nothing else of it has changed.
  void Set(const std::string& id, const VersionKey& key, fleet::ResidencyState state,
           fleet::Failure failure = fleet::Failure::kNone, const std::string& detail = "") {
    std::vector<fleet::ObservedResidency>& residencies = Of(id).residencies;
    std::erase_if(residencies, [&](const auto& residency) { return residency.key == key; });
    fleet::ObservedResidency residency;
    residency.name = NameOf(key);
    residency.key = key;
    residency.state = state;
    residency.failure = failure;
    if (failure != fleet::Failure::kNone)
      residency.reason = failure == fleet::Failure::kRefused ? "ENGINE_REFUSED" : "FAILED";
    residency.detail = detail;
    residencies.push_back(residency);
    std::ranges::sort(residencies, {}, &fleet::ObservedResidency::name);
    Report(id);
  }
  // It tries, and this is how it fails.
  void Fail(const std::string& id, const VersionKey& key, fleet::Failure failure,
            const std::string& detail = "") {
    Set(id, key, fleet::ResidencyState::kLoading);
    Set(id, key, fleet::ResidencyState::kFailed, failure, detail);
  }
  // Its engine dies of the version, as its proxy counts, and comes back.
  void Die(const std::string& id, const VersionKey& key) {
    fleet::Observed& observed = Of(id);
    const auto killer = std::ranges::find(observed.killers, NameOf(key), &fleet::Killer::name);
    if (killer == observed.killers.end()) {
      observed.killers.push_back({NameOf(key), 1});
    } else {
      ++killer->deaths;
    }
    observed.boot = BootId();
    observed.residencies.clear();
    Report(id);
    Boot(id);
  }
  // Its pod is another one: neither its engine nor its journal is there any more.
  void Evict(const std::string& id) {
    Step(SessionLost{SessionOf(MemberId(id))});
    fleet::Observed& observed = Of(id);
    observed.journal = JournalId("j-" + id + "." + std::to_string(++boots_));
    observed.boot = BootId(id + "." + std::to_string(boots_));
    observed.term = Term();
    observed.sequence = 1;
    observed.killers.clear();
    observed.residencies.clear();
    observed.rows.clear();
  }
  void Attach(const std::string& id, const PoolName& pool = kRollout) {
    Step(SessionOpened{SessionOf(MemberId(id)), MemberId(id), pool, Of(id)});
  }
  void Boot(const std::string& id) {
    Of(id).boot = BootId(id + "." + std::to_string(++boots_));
    Of(id).residencies.clear();
    Report(id);
  }
  void Alias(const std::string& name, std::optional<VersionKey> key) {
    Step(AliasSet{kMath, AliasName(name), std::move(key)});
  }
  MemberStatus StatusOf(const std::string& id) const {
    for (const MemberStatus& member : machine_->GetStatus().members) {
      if (member.member.value == id) return member;
    }
    return {};
  }
  fleet::DesiredRow Row(const std::string& id) const {
    return desired_.at(MemberId(id)).rows.at(0);
  }
  fleet::DoorRules Rules(const std::string& id) const {
    return desired_.at(MemberId(id)).rules.at(0);
  }
  Reply Lift(const VersionKey& key) {
    Step(VerdictLifted{++requests_, key});
    return replies_.back();
  }
  bool Holds(const VersionKey& key) const {
    return std::ranges::find(holds_.back(), key) != holds_.back().end();
  }
  std::vector<VerdictStatus> Verdicts() const { return machine_->GetStatus().verdicts; }
  // How many may load it.
  size_t Loaders(uint64_t number) const {
    size_t loaders = 0;
    for (const auto& [id, observed] : members_) loaders += MayLoad(id.value, number) ? 1 : 0;
    return loaders;
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
  // A ttl of 0 releases.
  Resolved Lease(const Selector& selector, int64_t ttl_ms, const std::string& holder = "client") {
    Step(LeaseAsked{++requests_, selector, kRollout, holder, ttl_ms});
    EXPECT_TRUE(replies_.back().status.ok()) << replies_.back().status;
    return replies_.back().resolved;
  }
  Reply Override(std::optional<VersionKey> version, const std::string& request_id) {
    Step(OverrideSet{++requests_, kMath, kRollout, std::move(version), request_id});
    return replies_.back();
  }
  SlotNeed Need(const std::string& id) const {
    for (const MemberStatus& member : machine_->GetStatus().members) {
      if (member.member.value == id) return member.slot_need;
    }
    return {};
  }
  std::vector<LeaseStatus> Leases() const { return machine_->GetStatus().leases; }
  void NewRun() {
    adapter_.current_run = RunId(adapter_.current_run.value + 1);
    Step(AdapterSet{adapter_});
  }
  void Pass(int64_t ms) {
    now_ += ms;
    Step(TimePassed{});
  }
  void Step(const Event& event) {
    machine_->Step(now_, event);
    EXPECT_EQ(machine_->CheckDerived(), "");
    Take();
  }
  lorry::sync::Status Status() const { return machine_->GetStatus(); }
  PoolStatus Pool() const { return machine_->GetStatus().pools.at(0); }
  PoolStatus PoolOf(const PoolName& name) const {
    for (const PoolStatus& pool : machine_->GetStatus().pools) {
      if (pool.pool == name) return pool;
    }
    return {};
  }
  Reply Adopt(bool newest = false) {
    Step(FleetAdopted{++requests_, newest});
    return replies_.back();
  }
  // What the member was last told of the version; null: it is not wanted there.
  const fleet::WantedVersion* WantedOn(const std::string& id, uint64_t number) const {
    const std::vector<fleet::WantedVersion>& wanted = desired_.at(MemberId(id)).wanted;
    const auto it = std::ranges::find_if(wanted, [&](const fleet::WantedVersion& version) {
      return version.key.number.value == number;
    });
    return it != wanted.end() ? &*it : nullptr;
  }
  bool Wants(const std::string& id, uint64_t number) const {
    return WantedOn(id, number) != nullptr;
  }
  std::optional<fleet::ProbeMode> Probe(const std::string& id, uint64_t number) const {
    const fleet::WantedVersion* wanted = WantedOn(id, number);
    return wanted != nullptr ? std::optional(wanted->probe) : std::nullopt;
  }
  bool MayLoad(const std::string& id, uint64_t number) const {
    const fleet::WantedVersion* wanted = WantedOn(id, number);
    return wanted != nullptr && wanted->load;
  }
  uint32_t DeathsAllowed(const std::string& id, uint64_t number) const {
    const fleet::WantedVersion* wanted = WantedOn(id, number);
    return wanted != nullptr ? wanted->deaths_allowed : 0;
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
  std::vector<fleet::Desired> said_;  // documents as they were sent
  std::vector<WatchEvent> told_;
  std::vector<Footing> footings_;  // as they were said
  AdapterInfo adapter_{kMath, {}, RunId(1)};
  std::vector<VersionInfo> versions_;  // in the store
  Records records_;
  Config config_;
  std::vector<std::vector<VersionKey>> holds_;  // as they were set
  std::optional<HoldsMark> remembered_;         // by the store

  bool store_is_silent_ = false;  // it takes holds, and does not say so
  void StoreAnswers() {
    for (const Revision revision : std::exchange(unanswered_, {})) Step(HoldsAcked{revision, {}});
  }
  void StoreAnswersTheFirst() {
    ASSERT_FALSE(unanswered_.empty());
    const Revision first = unanswered_.front();
    unanswered_.erase(unanswered_.begin());
    Step(HoldsAcked{first, {}});
  }

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
    for (const Effect& effect : ready.effects) {
      if (const auto* desired = std::get_if<SetDesired>(&effect)) {
        desired_[desired->member] = desired->Whole();
        said_.push_back(desired_[desired->member]);
      }
      if (const auto* ended = std::get_if<EndSession>(&effect)) ended_.push_back(*ended);
      if (const auto* notify = std::get_if<NotifyWatch>(&effect)) told_.push_back(notify->event);
      if (const auto* changed = std::get_if<FootingChanged>(&effect))
        footings_.push_back(changed->footing);
      if (const auto* set = std::get_if<SetHolds>(&effect)) {
        holds_.push_back(set->versions);
        unanswered_.push_back(set->mark.revision);
        remembered_ = set->mark;
      }
    }
    if (!store_is_silent_) StoreAnswers();
  }

  Tick now_ = 1'000;
  uint64_t boots_ = 1;
  uint64_t generation_ = 1;
  RequestId requests_ = 1'000;
  std::optional<Machine> machine_;
  std::map<MemberId, fleet::Observed> members_;
  std::map<MemberId, fleet::Desired> desired_;
  std::vector<Revision> unanswered_;
};

}  // namespace lorry::sync
