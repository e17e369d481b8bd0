#include "services/engine_proxy/machine/door_table.h"

#include <algorithm>
#include <tuple>

namespace lorry::proxy {
namespace {

template <typename T, typename Key, typename Get>
const T* Find(const std::vector<T>& sorted, const Key& key, Get get) {
  const auto it = std::lower_bound(sorted.begin(), sorted.end(), key,
                                   [&](const T& item, const Key& k) { return get(item) < k; });
  return it != sorted.end() && get(*it) == key ? &*it : nullptr;
}

}  // namespace

const DoorRow* DoorTable::FindRow(const AdapterName& adapter) const {
  return Find(rows, adapter, [](const DoorRow& row) -> const AdapterName& { return row.adapter; });
}

const DoorBinding* DoorTable::FindBinding(std::string_view name) const {
  return Find(bindings, name,
              [](const DoorBinding& binding) { return std::string_view(binding.name); });
}

const DoorRoute* DoorTable::FindRoute(const EngineName& name) const {
  return Find(routes, name, [](const DoorRoute& route) -> const EngineName& { return route.name; });
}

const fleet::DoorRules* DoorTable::FindRules(const AdapterName& adapter) const {
  return Find(rules, adapter,
              [](const fleet::DoorRules& rule) -> const AdapterName& { return rule.adapter; });
}

const fleet::AliasRoute* DoorTable::FindAlias(const AdapterName& adapter,
                                              const AliasName& alias) const {
  return Find(aliases, std::tie(adapter, alias),
              [](const fleet::AliasRoute& route) { return std::tie(route.adapter, route.alias); });
}

const DoorRoute* DoorTable::FindVersion(const AdapterName& adapter, VersionNumber number) const {
  const fleet::DoorRules* rule = FindRules(adapter);
  if (rule == nullptr) return nullptr;
  const VersionKey key{adapter, rule->current_run, number};
  const auto it = std::find_if(routes.begin(), routes.end(),
                               [&](const DoorRoute& route) { return route.key == key; });
  return it != routes.end() ? &*it : nullptr;
}

}  // namespace lorry::proxy
