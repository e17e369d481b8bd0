// The oracle: sees everything in the simulated world and knows the rules of docs/SEMANTICS.md §10.
// A violation is recorded with its time; the run ends at the first.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "services/engine_proxy/machine/machine.h"
#include "services/sync_orchestrator/machine/machine.h"

namespace lorry::sim {

// Whether a lease of this version is one of those that the selector of a release, or of a renewal, may
// stand for.
bool MayName(const fleet::Selector& selector, const VersionKey& version);

class Oracle {
 public:
  explicit Oracle(const std::function<Tick()>& now) : now_(now) {}

  bool violated() const { return violation_.has_value(); }
  const std::string& violation() const { return *violation_; }
  void Violate(int invariant, const std::string& what);

  // 1: an engine name never means two contents.
  void NameMeans(const EngineName& name, const Digest& content);
  // 3, 4: what the orchestrator made durable.
  void Durable(const Term& term, const sync::Record& record);
  // Told of each decision to COMMIT, and of how many members a share was taken.
  using Committed =
      std::function<void(const AdapterName&, const PoolName&, const VersionKey&, uint32_t members)>;
  void OnCommit(Committed told) { on_commit_ = std::move(told); }
  // Told of what is known of a version, as it is durable.
  void OnVerdict(std::function<void(const sync::VerdictRecord&)> told) {
    on_verdict_ = std::move(told);
  }
  // Told that an operator's word that a member is dead is durable.
  void OnDead(std::function<void(const MemberId&)> told) { on_dead_ = std::move(told); }
  void OnForgotten(std::function<void(const MemberId&)> told) { on_forgotten_ = std::move(told); }
  // Of other pools of the adapter nobody is served: the store may delete what they have decided.
  void PolicyHas(const AdapterName& adapter, const std::map<PoolName, fleet::PoolSource>& pools);
  // What was decided before the run.
  void BeginsWith(const sync::Records& records);
  // The records are gone, or older ones; whether the store remembers later ones. Where it does not,
  // older ones are taken for the latest, and what they were syncing is decided anew.
  void RecordsLost(bool is_remembered, const sync::Records& left);
  // The latest decision that a door of each pool remembers by then. One that is later than that, as
  // the doors that followed it have moved to another pool since, nobody can adopt; nor what the
  // store has lost.
  using Remembrance = std::map<std::pair<AdapterName, PoolName>, std::pair<uint64_t, Epoch>>;
  void Adopted(const Remembrance& remembered,
               const std::function<bool(const VersionKey&)>& is_stored);
  void JournalLost(const JournalId& journal);
  // The store is an older one: whether it still knows more than the records, and what it knows to be
  // held. All else it may delete before it is told what is held. Older records that only the later
  // store could have told from the latest are taken for these from now on.
  void StoreForgot(bool still_knows, const std::set<VersionKey>& held,
                   const sync::Records& records);
  void StoreIsTold() { held_by_older_.reset(); }
  // An adapter is deleted or archived with all that was promised of it. Of one that is deleted
  // later runs are another's, which begins when somebody takes the name again.
  void AdapterDeleted(const AdapterName& adapter, std::optional<RunId> next_begins);
  // 3, 4: a door opened a row.
  void RowOpened(const JournalId& journal, uint64_t incarnation, const AdapterName& adapter,
                 const PoolName& pool, Epoch epoch, const VersionKey& version);
  // 4: nothing is desired by a reign that does not know yet what was decided before it.
  void DesiredSent(const Term& term);
  // 5: a request of `latest` was admitted by a row that stands on this decision.
  void BeganOnLatest(uint64_t incarnation, const AdapterName& adapter, const PoolName& pool,
                     Epoch epoch);
  // 15 (§5): a request of `latest` was admitted where the decision `known` is known.
  void ServedLatest(uint64_t incarnation, const PoolName& pool, Epoch known,
                    const VersionKey& version, uint32_t max_staleness);
  // 8, 10: the store deleted a version.
  void Deleted(const VersionKey& version);
  // 10: what was promised to a holder, until then; 0 releases it. A reign must know what it, or one
  // before it, promised.
  void Leased(const VersionKey& version, const std::string& holder, Tick until);
  // A call that was not answered yet may leave of the holder's leases that it names only so much.
  void LeaseInDoubt(const fleet::Selector& selector, const std::string& holder, Tick until);
  void KnowsLeases(const std::vector<sync::LeaseStatus>& leases);
  // 9: a document of a lower term reached a proxy.
  void StaleDocument(const fleet::Observed& before, const fleet::Observed& after);
  // 14: a call was answered.
  void Called(sync::RequestId request) { answers_[request] = 0; }
  void Answered(sync::RequestId request);
  void MustBeAnswered(sync::RequestId request);  // the leader has had its turn

  const std::map<std::pair<VersionKey, std::string>, Tick>& leases() const { return leases_; }
  // Whether the epoch was given to other versions of the pool, and in no incarnation to this one.
  bool IsAnothers(const AdapterName& adapter, const PoolName& pool, Epoch epoch,
                  const VersionKey& version) const;
  // What was decided last for (adapter, pool) in any incarnation so far.
  uint64_t commits() const { return commits_; }
  uint64_t aborts() const { return aborts_; }

 private:
  using EpochKey = std::tuple<uint64_t, AdapterName, PoolName, Epoch>;

  void Reigns(const sync::MetaRecord& meta);
  void TakenForTheLatest(const sync::Records& left);
  void Undecide(const EpochKey& id);
  // In an earlier incarnation.
  bool WasDecidedBefore(const EpochKey& id, const VersionKey& version) const;
  void Remembered(const EpochKey& id, const VersionKey& version);
  bool HasPool(const AdapterName& adapter, const PoolName& pool) const;
  bool IsOfAnother(const VersionKey& version, const VersionKey& decided) const;
  bool IsOver(const EpochKey& id) const;
  // By epoch; one that was given out again has several.
  std::map<Epoch, std::set<VersionKey>> CommitsOf(uint64_t incarnation, const AdapterName& adapter,
                                                  const PoolName& pool) const;

  const std::function<Tick()>& now_;
  std::optional<std::string> violation_;
  std::map<EngineName, Digest> contents_;
  std::map<EpochKey, VersionKey> started_;
  std::set<EpochKey> staged_;  // of these, what records that were not lost since know of
  std::optional<std::set<VersionKey>> held_by_older_;
  std::map<EpochKey, sync::DecisionRecord> decided_;
  // And of records that were lost, where older ones were taken for the latest since.
  std::map<EpochKey, std::set<VersionKey>> once_committed_;
  // The first run of each of a name that came after one was deleted in this incarnation.
  std::map<AdapterName, std::set<RunId>> lives_;
  std::set<AdapterName> were_gone_;  // archived or deleted, whatever became of them since
  std::map<std::pair<AdapterName, PoolName>, VersionKey> committed_;  // the last of each pool
  std::map<AdapterName, std::set<PoolName>> pools_;                   // that its policy has
  std::set<EpochKey> barriers_;                                       // syncs of that mode
  // The last that was committed, behind which no door of the pool admits anything.
  std::map<std::tuple<uint64_t, AdapterName, PoolName>, Epoch> behind_;
  std::set<Term> unsettled_;
  uint64_t incarnation_ = 0;  // the last that knew, or adopted, what was decided
  bool is_lost_ = false;
  bool is_unsettled_ = false;  // the last reign over these records did not know what was decided
  Committed on_commit_;
  std::function<void(const sync::VerdictRecord&)> on_verdict_;
  std::function<void(const MemberId&)> on_dead_;
  std::function<void(const MemberId&)> on_forgotten_;
  std::map<EpochKey, uint32_t> members_;  // of which a sync asks a share
  // What a row stands on, as its proxy remembers.
  std::map<std::pair<JournalId, AdapterName>, std::pair<PoolName, VersionKey>> stands_;
  std::map<std::pair<VersionKey, std::string>, Tick> leases_;
  std::map<std::tuple<JournalId, uint64_t, AdapterName, PoolName>, Epoch> opened_;
  std::map<sync::RequestId, int> answers_;
  uint64_t commits_ = 0;
  uint64_t aborts_ = 0;
};

}  // namespace lorry::sim
