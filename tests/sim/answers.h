// What callers and watchers of a leader are told, judged by what they asked and by what is so.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/sim/sim.h"
#include "tests/sim/sim_store.h"

namespace lorry::sim {

class Answers {
 public:
  Answers(Sim& sim, const SimStore& store) : sim_(sim), store_(store) {}

  // A leader has the call, or the watch, and answers it.
  void Asked(const sync::Event& call);
  void Replied(const sync::Reply& reply);
  void Watched(sync::WatchId watch, const VersionKey& version, const PoolName& pool);
  void Told(sync::WatchId watch, const sync::WatchEvent& event);
  // A leader knows that nobody is there any more.
  void Closed(sync::WatchId watch) { closed_.insert(watch); }

  // Of the members in a status: why they are not ready, and what operators have said of them.
  void Says(const std::vector<sync::MemberStatus>& members);
  // It is off the roster, with what an operator said of it.
  void Forgotten(const MemberId& member);
  // Of all leases in a status: none that was given back is among them.
  void SaysLeases(const std::vector<sync::LeaseStatus>& leases);

  // Records or store were lost, or others: what was promised may be forgotten.
  void Forget();
  // A leader cannot have heard of anything that the store did before.
  void Listens(Tick since) { listens_since_ = std::max(listens_since_, since); }
  void Heard(const sync::Event& change);  // of the store

 private:
  using Pool = std::pair<AdapterName, PoolName>;
  // An operator's word that has a name of its own, and its answer.
  struct Once {
    std::string request_id;
    std::optional<VersionKey> version;
    Epoch epoch;
  };
  struct Watch {
    Pool pool;
    VersionKey version;
    bool is_over = false;
  };

  void Judge(const sync::LeaseAsked& ask, const sync::Reply& reply);
  void Judge(const sync::OverrideSet& ask, const sync::Reply& reply);
  void JudgeVerdict(const std::string& reason, const AdapterName& adapter);
  void JudgeEpoch(const sync::OverrideSet& ask, const sync::Reply& reply);
  std::string WhyUntrue(const Watch& watch, const sync::WatchEvent& event) const;
  // It has been stored for so long that every leader should know.
  bool IsLongStored(const VersionKey& version) const;
  void Violate(const std::string& what) { sim_.oracle.Violate(14, what); }

  Sim& sim_;
  const SimStore& store_;
  std::map<sync::RequestId, sync::Event> open_;
  std::map<Pool, std::vector<Once>> once_;
  std::map<std::string, int> times_asked_;  // by the name of an operator's word
  std::set<AdapterName> were_gone_;
  std::map<MemberId, sync::MemberMarked> marks_;  // the last of each, as it was answered
  // By holder: what was given back, and not asked for again.
  std::map<std::pair<std::string, AdapterName>, std::vector<fleet::Selector>> given_back_;
  std::map<sync::WatchId, Watch> watches_;
  std::set<sync::WatchId> closed_;
  std::map<VersionKey, Tick> stored_at_;
  Tick listens_since_ = 0;
};

}  // namespace lorry::sim
