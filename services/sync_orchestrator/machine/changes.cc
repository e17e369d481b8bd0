#include "services/sync_orchestrator/machine/changes.h"

namespace lorry::sync {

void Changes::Record(const RecordKey& key) {
  switch (key.of) {
    case RecordKey::Of::kFleet:
      return All();
    case RecordKey::Of::kMember:
      return Member(key.member);
    case RecordKey::Of::kAdapter:
      return Adapter(key.pool.adapter);
    case RecordKey::Of::kPool:
      return Pool(key.pool);
  }
}

bool Changes::MovesSyncs() const { return !syncs.empty() || !queues.empty(); }

void Changes::All() {
  ++count_;
  documents.all = syncs.all = trials.all = watches.all = true;
  queues.all = asked.all = holds = true;
}

void Changes::Adapter(const AdapterName& adapter) {
  ++count_;
  documents.adapters.insert(adapter);
  syncs.adapters.insert(adapter);
  trials.adapters.insert(adapter);
  watches.adapters.insert(adapter);
  queues.some.insert(adapter);
  asked.some.insert(adapter);
  holds = true;
}

void Changes::Pool(const PoolId& id) {
  ++count_;
  documents.pools.insert(id);
  syncs.adapters.insert(id.adapter);
  trials.adapters.insert(id.adapter);
  watches.adapters.insert(id.adapter);
  queues.some.insert(id.adapter);
  asked.some.insert(id.adapter);
  holds = true;
}

void Changes::Member(const MemberId& member) {
  ++count_;
  documents.members.insert(member);
  syncs.members.insert(member);
  trials.members.insert(member);
  watches.members.insert(member);
  holds = true;
}

void Changes::Part(const MemberId& member, const AdapterName& adapter) {
  ++count_;
  documents.parts[member].insert(adapter);
  syncs.parts[adapter].insert(member);
  trials.parts[adapter].insert(member);
  watches.parts[adapter].insert(member);
}

void Changes::Answer(const MemberId& member) { trials.members.insert(member); }

void Changes::Groups() { asked.all = true; }

void Changes::Held(const AdapterName& adapter) {
  ++count_;
  syncs.adapters.insert(adapter);
}

void Changes::Wait(const PoolId& id) {
  ++count_;
  watches.adapters.insert(id.adapter);
}

}  // namespace lorry::sync
