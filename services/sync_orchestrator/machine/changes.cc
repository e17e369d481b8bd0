#include "services/sync_orchestrator/machine/changes.h"

#include <vector>

#include "absl/strings/str_split.h"

namespace lorry::sync {

// "meta", "member/<member>", "verdict/<adapter>/...", "<kind>/<adapter>/<pool>...".
void Changes::Record(const std::string& key) {
  const std::vector<std::string> parts = absl::StrSplit(key, '/');
  if (parts.size() < 2) return All();
  if (parts[0] == "member") return Member(MemberId(parts[1]));
  if (parts[0] == "verdict" || parts[0] == "poison") return Adapter(AdapterName(parts[1]));
  Pool({AdapterName(parts[1]), PoolName(parts[2])});
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
