// Which pools or trials a planner looks at again, by what changed.
#pragma once

#include <map>
#include <set>

#include "services/sync_orchestrator/machine/changes.h"

namespace lorry::sync {

// What is looked at of a pool or a trial: all of it, or only what changed for these members.
struct Visit {
  bool whole = false;
  std::set<MemberId> members;
};

// `all` is sorted by adapter first: `first_of` is an adapter's lowest key, `adapter_of` a key's
// adapter.
template <typename Key, typename T, typename FirstOf, typename AdapterOf>
std::map<Key, Visit> VisitsOf(const Changes::Scope& changed, const std::map<Key, T>& all,
                              FirstOf first_of, AdapterOf adapter_of) {
  std::map<Key, Visit> visits;
  if (changed.all || !changed.members.empty()) {
    for (const auto& [key, value] : all) visits[key] = {changed.all, changed.members};
  }
  const auto each = [&](const AdapterName& adapter, const auto& visit) {
    for (auto it = all.lower_bound(first_of(adapter));
         it != all.end() && adapter_of(it->first) == adapter; ++it) {
      visit(visits[it->first]);
    }
  };
  for (const AdapterName& adapter : changed.adapters)
    each(adapter, [](Visit& visit) { visit.whole = true; });
  for (const auto& [adapter, members] : changed.parts) {
    each(adapter, [&](Visit& visit) { visit.members.insert(members.begin(), members.end()); });
  }
  return visits;
}

}  // namespace lorry::sync
