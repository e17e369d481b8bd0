// The simulated world: a store, leaders over shared records, proxies with their engines, and the
// network between them, all from one seed. Verbs for tests and transcripts; RunFor lets time pass.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/sim/answers.h"
#include "tests/sim/sim_leader.h"
#include "tests/sim/sim_proxy.h"
#include "tests/sim/sim_store.h"
#include "tests/sim/wire.h"

namespace lorry::sim {

class World {
 public:
  explicit World(uint64_t seed);

  Sim& sim() { return sim_; }
  SimStore& store() { return store_; }
  Answers& answers() { return answers_; }
  void RunFor(int64_t ms);

  // Members; kind and slots of the engine, its proxy and engine started at once.
  SimProxy& AddMember(const std::string& id, fleet::EngineKind kind, uint32_t slots,
                      const PoolName& pool = PoolName("rollout"));
  SimProxy& proxy(const std::string& id) { return *proxies_.at(MemberId(id)); }
  std::map<MemberId, std::unique_ptr<SimProxy>>& proxies() { return proxies_; }
  // The last document that a leader sent to the member.
  const fleet::Desired& desired(const MemberId& member) { return desired_[member]; }
  void StartEngine(SimProxy& proxy);
  void KillEngine(SimProxy& proxy);

  // Leaders; a new one takes over whatever the old one does. Losing the records begins another
  // incarnation.
  void StartLeader();
  void KillLeader();
  void EndZombies();     // leaders that go on beside their successor, as long as they write nothing
  void AbandonLeader();  // it goes on, nobody new dials it
  void LoseRecords();
  void BeginWith(sync::Records records);  // of earlier leaders, before the first here
  const sync::Records& records() const { return shared_.records; }
  // With the store or without: whoever restores it restores both then.
  void BackUp(bool whole);
  void RestoreStore();    // of its last backup, or to nothing at all
  void RestoreRecords();  // of the last backup, if there is one
  // An operator answers a leader that waits for FleetAdopted: in haste, which must be refused, or
  // once every member is attached.
  void AdoptIfAsked();
  SimLeader* leader();  // the one that proxies and clients dial; null while there is none

  // The engine's memory is released for so long.
  void PutToSleep(const MemberId& member, int64_t ms);

  // Messages between a proxy and everyone are lost until the time given.
  void Partition(const MemberId& member, Tick until);

  // Leaders hear nothing of the store for so long, then read all of it again.
  void BreakWatch(int64_t ms);

  // Calls to the leader; the answer, when it came, in replies().
  sync::RequestId Call(sync::Event event, sync::RequestId request);
  sync::RequestId NewRequest() { return ++last_request_; }
  const std::map<sync::RequestId, sync::Reply>& replies() const { return replies_; }
  // An operator's word on a member. What its engine dies of blames nobody from the moment that it is
  // taken out until the leader has said that it is taken back.
  void Mark(const sync::MemberMarked& mark);
  sync::WatchId Watch(const VersionKey& version, const PoolName& pool);
  void CloseWatch(sync::WatchId watch);  // whoever asked has gone
  const std::vector<std::string>& notes() const { return notes_; }

  // Members that are LOST or DEAD for so long are forgotten by leaders that start.
  void ForgetAfter(int64_t ms) { forget_ms_ = ms; }
  // A leader took its goodbye, and no session began since.
  bool HasLeft(const MemberId& member) const { return left_.contains(member); }

  // Whether the member has a session with the present leader.
  bool IsAttached(const MemberId& member) const;

  // What open watches of the present leader were told last.
  std::vector<sync::WatchEvent> ToldOf(const VersionKey& version, const PoolName& pool) const;

  // A name that a member keeps though it is not in what was last desired; empty when none.
  std::string WhyNamesStay(const MemberId& member);
  // A watch of the present leader that has no final answer, and no reason to wait; empty when none.
  std::string WhyWatchesHang();

  // The orchestrator's view, then each proxy's own, one line each.
  std::string Describe();

 private:
  struct Session {
    uint64_t leader;
    MemberId member;
    uint64_t life;
    PoolName pool;
    bool open = true;
    bool is_over = false;            // its leader knows that it ended
    uint64_t sequence = 0;           // of the last report that its leader took
    std::set<uint64_t> silent = {};  // reports of before it could tell what an engine died of
  };
  void Dial(const MemberId& member);
  void Attach(const MemberId& member, uint64_t life);
  void Break(sync::SessionId session);
  // What a leader has taken in, of which a part tells what engines died of.
  void Heard(const sync::Event& event);
  void CheckRemembered(uint64_t leader, const sync::SessionOpened& opened);
  bool StoreKnowsOfMore() const;
  void NoteLeaves(const sync::VerdictRecord& verdict);
  void NoteLeavesAnew();  // by records that were restored, or lost
  void BreakAll(const MemberId& member, int64_t proxy_notices_ms);
  void End(const sync::EndSession& effect);
  bool MayForgetLost(const PoolName& pool) const;
  void ToLeader(sync::SessionId session, const fleet::Observed& observed);
  void ToProxy(const sync::SetDesired& effect);
  // A decision needs members that have its version, as many as the policy says.
  void CheckCommit(const AdapterName& adapter, const PoolName& pool, const VersionKey& version,
                   uint32_t members);
  void ToStore(uint64_t leader, const sync::SetHolds& effect);
  bool Lost(const MemberId& member);
  struct AskedLease {
    sync::LeaseAsked ask;
    Tick at = 0;
  };
  void NoteLease(const AskedLease& asked, const sync::Reply& reply);
  // Runs `then` after a delay, once or twice or never.
  void Send(const MemberId& member, const std::function<void()>& then);
  SimLeader* Find(uint64_t leader);

  Sim sim_;
  SimStore store_;
  Answers answers_{sim_, store_};
  SharedRecords shared_;
  std::map<MemberId, std::unique_ptr<SimProxy>> proxies_;
  std::map<uint64_t, std::unique_ptr<SimLeader>> leaders_;
  sync::Records backup_;
  bool is_backup_whole_ = false;
  std::map<MemberId, JournalId> restored_;  // the roster of the backup that was restored last
  // Leave to try versions, as it stands in the records.
  using Leave = std::tuple<MemberId, BootId, JournalId>;
  std::map<VersionKey, std::set<Leave>> leaves_;
  uint64_t current_leader_ = 0;
  uint64_t last_leader_ = 0;
  Tick all_had_time_at_ = 0;  // every proxy could have attached to the leader by then
  std::map<sync::SessionId, Session> sessions_;
  sync::SessionId last_session_ = 0;
  std::map<MemberId, Tick> partitioned_until_;
  std::map<MemberId, fleet::Desired> desired_;
  std::map<MemberId, Wire<fleet::Observed>> told_;  // by members
  std::map<MemberId, Wire<fleet::Desired>> asked_;  // of them
  sync::RequestId last_request_ = 0;
  sync::WatchId last_watch_ = 0;
  struct Watched {
    VersionKey version;
    PoolName pool;
    uint64_t leader = 0;  // that was asked
    bool was_told = false;
    sync::WatchEvent answer;  // the last
    std::string note;         // what was noted of it; how far each member is, is not
    bool is_closed = false;
  };
  std::map<sync::WatchId, Watched> watched_;
  Tick watch_back_ = 0;
  std::optional<int64_t> forget_ms_;
  std::set<MemberId> left_;
  std::map<sync::RequestId, sync::Reply> replies_;
  std::map<sync::RequestId, AskedLease> leases_asked_;
  std::map<sync::RequestId, MemberId> taken_back_;  // calls that are not answered yet
  std::vector<std::string> notes_;
};

}  // namespace lorry::sim
