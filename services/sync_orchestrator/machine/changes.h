// What changed since the planners last looked, and for whom. This is the one place that knows what
// depends on what: whoever changes the state calls the function for what it changed, and every
// planner finds here what it has to look at again. Machine::CheckDerived compares that with looking
// at all.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "lib/base/ids.h"

namespace lorry::sync {

struct PoolId {
  AdapterName adapter;
  PoolName pool;
  auto operator<=>(const PoolId&) const = default;
};

// A record's key (keys.h), and whom the record is about, which tells what depends on it.
struct RecordKey {
  enum class Of { kFleet, kMember, kAdapter, kPool };
  std::string text;
  Of of = Of::kFleet;
  MemberId member = {};
  PoolId pool = {};  // kAdapter: its adapter alone
};

class Changes {
 public:
  // A record was written or erased: what its key names.
  void Record(const RecordKey& key);

  // A reign begins, or all of the store was read.
  void All();
  // Its policy or run, a version or an alias of it, or what is known against one.
  void Adapter(const AdapterName& adapter);
  // Its queue, override, sync, decision or leases. Pools of one adapter may follow each other.
  void Pool(const PoolId& id);
  // Its session, standing, boot, limits or deaths.
  void Member(const MemberId& member);
  // What it reports of one adapter, or how far one of the adapter's versions may go there.
  void Part(const MemberId& member, const AdapterName& adapter);
  // The store has said that it keeps a version of it.
  void Held(const AdapterName& adapter);
  // Why its version waits.
  void Wait(const PoolId& id);

  // It has answered what it was told last.
  void Answer(const MemberId& member);
  // The first of a group has come into a pool, or the last has left it.
  void Groups();

  // Grows with each change that may give a slot to a version that waits for one.
  uint64_t count() const { return count_; }

  // Whether queues or syncs have something to look at.
  bool MovesSyncs() const;

  // What is to be looked at again: all, whole adapters, and else single members.
  struct Scope {
    bool all = false;
    std::set<AdapterName> adapters;
    std::set<MemberId> members;                            // in every adapter
    std::map<AdapterName, std::set<MemberId>> parts = {};  // in one
    bool empty() const { return !all && adapters.empty() && members.empty() && parts.empty(); }
  };
  Scope syncs;    // for sync.h
  Scope trials;   // for trials.h
  Scope watches;  // for watches.h
  struct Adapters {
    bool all = true;
    std::set<AdapterName> some = {};
    bool empty() const { return !all && some.empty(); }
  };
  Adapters queues;  // for catalogue.h
  Adapters asked;   // for trials.h: of whose versions it may be open whether engines take them

  // For desired.h: parts of documents to compute again.
  struct Documents {
    bool all = false;
    std::set<AdapterName> adapters;
    std::set<PoolId> pools;
    std::set<MemberId> members;
    std::map<MemberId, std::set<AdapterName>> parts;
    bool empty() const {
      return !all && adapters.empty() && pools.empty() && members.empty() && parts.empty();
    }
  };
  Documents documents;
  // For holds.h. desired.h sets it too, when a part comes into use or goes out of it.
  bool holds = true;

 private:
  uint64_t count_ = 1;
};

}  // namespace lorry::sync
